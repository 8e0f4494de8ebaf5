use std::path::Path;

use lanner_store::{Period, Scope, Store};

use crate::open;

/// Files as the program of each version wrote them.
const VERSIONS: [&str; 4] = [
    include_str!("data/version1.sql"),
    include_str!("data/version2.sql"),
    include_str!("data/version3.sql"),
    include_str!("data/version4.sql"),
];

fn write(path: &Path, statements: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch(statements).unwrap();
}

fn check(store: &Store) {
    let listed = store.list(&Scope::All, None, 10).unwrap().items;
    let titles: Vec<&str> = listed.iter().map(|summary| &*summary.title).collect();
    assert_eq!(titles, ["Storks", "Which birds hunt at night?"]);
    let owls = store.conversation(&Scope::Owner(String::new()), "c1").unwrap();
    assert_eq!(
        owls.branch().iter().map(|message| &*message.text).collect::<Vec<_>>(),
        ["Which birds hunt at night?", "Owls and nightjars."]
    );
    assert_eq!(owls.system(), Some("Be terse."));
    assert_eq!(owls.messages[1].usage.as_ref().unwrap()["completion_tokens"], 4);
    let found = store.search(&Scope::All, "nightjars", None, 10).unwrap().items;
    assert_eq!(found.iter().map(|summary| &*summary.id).collect::<Vec<_>>(), ["c1"]);
    assert_eq!(store.search(&Scope::Owner("ann".into()), "鹳", None, 10).unwrap().items.len(), 1);
    assert_eq!(store.requests(10).unwrap().len(), 3);
    let usage = store.usage(Period::Hour, 0).unwrap();
    assert_eq!(usage.len(), 2, "{usage:?}");
    let first = &usage[0];
    assert_eq!((first.start, first.requests, first.failed, first.cancelled), (1_700_002_800, 2, 1, 0));
    assert_eq!((first.prompt_tokens, first.cached_tokens, first.completion_tokens), (20, 8, 4));
    assert_eq!((first.mean_time_to_first_token_s, first.tokens_per_second), (Some(0.05), Some(40.0)));
    assert_eq!((usage[1].requests, usage[1].failed, usage[1].cancelled), (1, 0, 1));
}

#[test]
fn files_of_every_version_are_brought_to_the_newest() {
    for (version, statements) in VERSIONS.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        write(&path, statements);
        let read_version = || -> i64 {
            let connection = rusqlite::Connection::open(&path).unwrap();
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
        };
        assert_eq!(read_version(), version as i64 + 1);
        check(&open(&path));
        assert_eq!(read_version(), VERSIONS.len() as i64);
        // Nothing is left to do.
        check(&open(&path));
    }
}

#[test]
fn failed_migration_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    // The table of a later version is in the way.
    write(&path, &format!("{}\nCREATE TABLE usage (x);", VERSIONS[1]));
    assert!(Store::open(&path).is_err());
    let connection = rusqlite::Connection::open(&path).unwrap();
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 2);
    connection.execute_batch("DROP TABLE usage").unwrap();
    drop(connection);
    check(&open(&path));
}
