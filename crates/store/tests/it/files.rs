use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
    thread,
};

use lanner_store::{Limits, RequestRecord, Scope, Store, StoreError, Update, now};

use crate::{Fixture, open, turn};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn record() -> RequestRecord {
    RequestRecord { at: now(), ..RequestRecord::default() }
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn files_are_for_the_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/lanner/store.db");
    assert!(Store::open_existing(&path).unwrap().is_none());
    assert!(!folder.path().join("new").exists());
    let store = open(&path);
    store.put("", "c", turn("q", "a")).unwrap();
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    for name in ["store.db", "store.db-wal", "store.db-shm"] {
        assert_eq!(mode(&path.with_file_name(name)), 0o600, "{name}");
    }
    drop(store);
    assert_eq!(names(path.parent().unwrap()), ["store.db"]);
    // A copy that other users can read.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    drop(open(&path));
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn removed_texts_leave_the_files() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let long = |word: &str| turn(&format!("about {word}"), &format!("{word} ").repeat(3000));
    store.put("", "keep", turn("ordinary", "plain")).unwrap();
    store.put("", "c", long("gyrfalcon")).unwrap();
    store.put("", "d", long("lammergeier")).unwrap();
    store.remove(&Scope::All, "c").unwrap();
    store.put("", "d", Update { title: Some("Other".into()), ..long("capercaillie") }).unwrap();
    store.remove(&Scope::All, "d").unwrap();
    let folder = fixture.close();
    for name in names(folder.path()) {
        let bytes = fs::read(folder.path().join(&name)).unwrap();
        let has = |word: &str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
        for word in ["gyrfalcon", "gyrf", "lammergeier", "capercaillie"] {
            assert!(!has(word), "{name} has {word}");
        }
        assert!(has("ordinary"), "{name}");
    }
}

#[test]
fn damaged_file_is_set_aside() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("zeros at the start", |path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0; 100], 0).unwrap();
        }),
        ("garbage in the middle", |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            let length = file.metadata().unwrap().len();
            (1..length / 4096).for_each(|page| file.write_all_at(&[0xa5; 64], page * 4096).unwrap());
        }),
        ("a missing end", |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
        ("garbage in the header", |path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0xff; 40], 16).unwrap();
        }),
    ];
    for (name, damage) in damages {
        let fixture = Fixture::new();
        for number in 0..50 {
            fixture.store.put("", &format!("c{number}"), turn("question", "answer")).unwrap();
        }
        let path = fixture.path();
        let folder = fixture.close();
        damage(&path);
        let opening = Store::open(&path).unwrap();
        let notice = opening.notice.expect(name);
        assert!(notice.contains("is damaged (") && notice.contains("was set aside as"), "{notice}");
        assert!(opening.store.list(&Scope::All, None, 10).unwrap().items.is_empty(), "{name}");
        opening.store.put("", "c", turn("q", "a")).unwrap();
        drop(opening.store);
        let aside = names(folder.path()).into_iter().filter(|name| name.contains(".damaged-")).count();
        assert_eq!(aside, 1, "{name}: {:?}", names(folder.path()));
        assert_eq!(open(&path).list(&Scope::All, None, 10).unwrap().items.len(), 1, "{name}");
    }
}

#[test]
fn damage_found_later_is_an_error_and_set_aside_at_the_next_start() {
    let fixture = Fixture::new();
    for number in 0..200 {
        fixture.store.put("", &format!("c{number}"), turn("question", &"answer ".repeat(200))).unwrap();
    }
    let path = fixture.path();
    let folder = fixture.close();
    let store = open(&path);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    (2..pages).for_each(|page| file.write_all_at(&[0xa5; 4096], page * 4096).unwrap());
    let read = |store: &Store, number: usize| store.conversation(&Scope::All, &format!("c{number}"));
    assert!((0..200).any(|number| matches!(read(&store, number), Err(StoreError::Damaged))));
    store.record(record());
    let _ = store.flush();
    drop(store);
    assert!(names(folder.path()).contains(&"store.db-suspect".to_owned()));
    assert!(Store::open(&path).unwrap().notice.is_some());
    assert!(!names(folder.path()).contains(&"store.db-suspect".to_owned()));
}

#[test]
fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "dear diary, this is a text").unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::Foreign(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary, this is a text");
    // A database of another program.
    let path = folder.path().join("other.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE bookmark (url TEXT);").unwrap();
    drop(connection);
    assert!(matches!(Store::open(&path), Err(StoreError::Foreign(_))));
    // A file of a later version.
    let fixture = Fixture::new();
    let path = fixture.path();
    let _folder = fixture.close();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let error = Store::open(&path).err().unwrap();
    assert!(matches!(error, StoreError::Newer { version: 99, .. }), "{error}");
    // A folder.
    let error = Store::open(folder.path()).err().unwrap().to_string();
    assert!(error.starts_with("cannot open the store "), "{error}");
}

#[test]
fn full_store_fails_one_write_and_not_the_next() {
    let folder = tempfile::tempdir().unwrap();
    // A limit of SQLite, which stands for a full disk.
    let limits = Limits { bytes: 512 << 10, ..Limits::default() };
    let store = Store::open_with(&folder.path().join("store.db"), limits).unwrap().store;
    store.put("", "small", turn("q", "a")).unwrap();
    let error = store.put("", "large", turn("q", &"x".repeat(1 << 20))).unwrap_err();
    assert!(matches!(error, StoreError::Full), "{error}");
    store.record(record());
    store.flush().unwrap();
    store.put("", "other", turn("q", "a")).unwrap();
    assert_eq!(store.requests(10).unwrap().len(), 1);
    assert_eq!(store.list(&Scope::All, None, 10).unwrap().items.len(), 2);
}

#[test]
fn two_programs_write_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    // Both may be the one that makes the file.
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let path = path.clone();
            thread::spawn(move || {
                let store = open(&path);
                for number in 0..25 {
                    store.put("", &format!("w{writer}c{number}"), turn("q", "a")).unwrap();
                    store.record(record());
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let store = open(&path);
    assert_eq!(store.list(&Scope::All, None, 1000).unwrap().items.len(), 100);
    assert_eq!(store.requests(1000).unwrap().len(), 100);
}

#[test]
fn write_waits_for_another_program_and_then_gives_up() {
    let fixture = Fixture::new();
    let other = rusqlite::Connection::open(fixture.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = fixture.store.put("", "c", turn("q", "a")).unwrap_err();
    assert!(matches!(error, StoreError::Busy), "{error}");
    other.execute_batch("COMMIT").unwrap();
    fixture.store.put("", "c", turn("q", "a")).unwrap();
    // Readers do not wait.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(fixture.store.list(&Scope::All, None, 10).unwrap().items.len(), 1);
}
