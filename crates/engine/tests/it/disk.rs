//! The disk tier of the prefix cache: it outlives the engine, it never changes a bit of any answer whatever becomes of
//! its files, and it keeps to its budget.

use std::{fs, path::PathBuf};

use engine::*;

use crate::support::{
    disk_model::{MODELS, Place, ask, held},
    requests::{Random, answer, any_request, submit},
};

#[test]
fn a_restart_goes_on_from_the_disk() {
    for golden in MODELS {
        let place = Place::new(golden);
        let mut random = Random(1);
        let head = random.tokens(700);
        let with = |tail: &[u32]| [&head[..], tail].concat();
        let expected = ask(&place.cold(), &with(&[5, 6, 7]));
        // Dropping an engine writes what waits.
        ask(&place.warm(), &with(&[9]));
        let again = place.warm();
        let got = ask(&again, &with(&[5, 6, 7]));
        assert_eq!(got.tokens, expected.tokens, "{golden}");
        assert_eq!(got.usage.cache.source, Some(CacheSource::Disk), "{golden}: {:?}", got.usage);
        assert!(got.usage.cached_tokens >= 700, "{golden}: {:?}", got.usage);
        // Now it is in memory.
        let third = ask(&again, &with(&[5, 6, 8]));
        assert_eq!(third.usage.cache.source, Some(CacheSource::Ram), "{golden}: {:?}", third.usage);
        let stats = again.cache_stats().expect("runs");
        assert_eq!((stats.disk_rejected, stats.failures), (0, 0), "{golden}: {stats:?}");
    }
}

#[test]
fn what_is_on_the_disk_is_not_written_again() {
    let place = Place::new("qwen3_5-text-sharded");
    let prompt = Random(2).tokens(600);
    ask(&place.warm(), &prompt);
    let first = place.files();
    for _ in 0..3 {
        assert_eq!(ask(&place.warm(), &prompt).usage.cached_tokens, 599);
        assert_eq!(place.files(), first);
    }
    let stored = disk_cache::list(place.disk.path()).expect("a folder");
    assert_eq!((stored.len(), stored[0].files), (1, first.len()));
    assert_eq!(stored[0].tokens, 604 - 1, "each token once: {stored:?}");
}

/// Each file broken in each way, found at the start and found later.
#[test]
fn a_broken_file_is_removed_and_never_used() {
    for golden in ["qwen3-a", "gemma3_text-a", "qwen3_5-text-sharded"] {
        let place = Place::new(golden);
        let mut random = Random(3);
        let prompt = random.tokens(450);
        let expected = ask(&place.cold(), &prompt).tokens;
        type Break = fn(&mut Vec<u8>, &mut Random);
        let ways: [(&str, Break); 7] = [
            ("emptied", |bytes, _| bytes.clear()),
            ("cut short", |bytes, random| bytes.truncate(random.below(bytes.len()))),
            ("longer", |bytes, _| bytes.extend(b"more")),
            ("a bit flipped in the header", |bytes, random| bytes[random.below(52)] ^= 1 << random.below(8)),
            ("a bit flipped", |bytes, random| {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }),
            ("its last byte changed", |bytes, _| *bytes.last_mut().expect("bytes") ^= 0x80),
            ("garbage", |bytes, random| bytes.iter_mut().for_each(|byte| *byte = random.next() as u8)),
        ];
        for (how, spoil) in ways {
            for late in [false, true] {
                fs::remove_dir_all(place.disk.path()).expect("a folder");
                ask(&place.warm(), &prompt);
                let early = late.then(|| place.warm());
                for file in place.files() {
                    let mut bytes = fs::read(&file).expect("a file");
                    spoil(&mut bytes, &mut random);
                    fs::write(&file, bytes).expect("writes");
                }
                let broken: Vec<_> =
                    place.files().iter().map(|f| (f.clone(), fs::read(f).expect("a file"))).collect();
                let engine = early.unwrap_or_else(|| place.warm());
                let got = ask(&engine, &prompt);
                assert_eq!(got.tokens, expected, "{golden}, {how}");
                assert_eq!(got.usage.cached_tokens, 0, "{golden}, {how}");
                assert!(engine.cache_stats().expect("runs").disk_rejected > 0, "{golden}, {how}");
                drop(engine);
                for (file, bytes) in broken {
                    assert!(fs::read(&file).ok() != Some(bytes), "{golden}, {how}: a broken file stays");
                }
                // What was written in its place is sound.
                let again = ask(&place.warm(), &prompt);
                assert_eq!(
                    (again.usage.cache.source, again.tokens),
                    (Some(CacheSource::Disk), expected.clone())
                );
            }
        }
    }
}

#[test]
fn files_of_others_are_not_used() {
    let place = Place::new("qwen3-a");
    let other = Place::new("qwen3_5-text-sharded");
    let prompt = Random(4).tokens(300);
    let expected = ask(&other.cold(), &prompt).tokens;
    ask(&place.warm(), &prompt);
    ask(&other.warm(), &prompt);
    let folder = other.files()[0].parent().expect("a folder").to_owned();
    // Sound files of another model, and a file of this one under another's name.
    let own = other.files();
    for (i, file) in place.files().iter().enumerate() {
        fs::copy(file, folder.join(file.file_name().expect("a name"))).expect("copies");
        if let Some(own) = own.get(i) {
            fs::copy(file, own).expect("copies");
        }
    }
    if own.len() > 1 {
        fs::copy(own.last().expect("a file"), &own[0]).expect("copies");
    }
    fs::write(folder.join("1-1.tmp"), "left by a writer that died").expect("writes");
    fs::write(folder.join("notes.txt"), "not ours").expect("writes");
    let got = ask(&other.warm(), &prompt);
    assert_eq!(got.tokens, expected);
    assert!(!folder.join("1-1.tmp").exists());
    assert!(folder.join("notes.txt").exists());
    let stats = other.warm().cache_stats().expect("runs");
    assert_eq!(stats.disk_rejected, 0, "what was wrong is gone: {stats:?}");
}

#[test]
fn another_way_to_compute_does_not_find_it() {
    let place = Place::new("qwen3-a");
    let prompt = Random(5).tokens(300);
    ask(&place.warm(), &prompt);
    let exact = place.start(Options { precision: Precision::Float32, ..place.with_disk(1 << 30) });
    assert_eq!(ask(&exact, &prompt).usage.cached_tokens, 0);
    let stored = disk_cache::list(place.disk.path()).expect("a folder");
    drop(exact);
    // Nor does another model, though it has the name and the size of this one.
    let weights = place.model.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("a file");
    let time = fs::metadata(&weights).and_then(|data| data.modified()).expect("a time");
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).expect("writes");
    let file = fs::File::options().write(true).open(&weights).expect("a file");
    file.set_modified(time).expect("a time");
    assert_eq!(ask(&place.warm(), &prompt).usage.cached_tokens, 0);
    assert!(!stored.is_empty());
}

#[test]
fn the_budget_holds_and_what_is_used_stays() {
    for golden in MODELS {
        let place = Place::new(golden);
        let mut random = Random(6);
        let keep = random.tokens(300);
        ask(&place.warm(), &keep);
        let budget = held(&place.files()) * 4;
        for _ in 0..12 {
            let engine = place.start(place.with_disk(budget as usize));
            let used = ask(&engine, &keep).usage;
            assert!(used.cached_tokens >= 200, "{golden}: {used:?}");
            let other = random.tokens(300);
            ask(&engine, &other);
            drop(engine);
            let files = place.files();
            assert!(held(&files) <= budget, "{golden}: {} of {budget} bytes", held(&files));
        }
        // A lower one.
        place.start(place.with_disk(budget as usize / 8));
        assert!(held(&place.files()) <= budget / 8, "{golden}");
    }
}

#[test]
fn clearing_clears_the_disk() {
    let place = Place::new("lfm2-a");
    let prompt = Random(7).tokens(300);
    let engine = place.warm();
    ask(&engine, &prompt);
    engine.clear_cache().expect("runs");
    assert_eq!(place.files(), Vec::<PathBuf>::new());
    assert_eq!(ask(&engine, &prompt).usage.cached_tokens, 0);
    drop(engine);
    assert!(!place.files().is_empty());
    let (files, bytes) = disk_cache::clear(place.disk.path()).expect("a folder");
    assert!(files > 0 && bytes > 0 && place.files().is_empty());
    assert_eq!(disk_cache::clear(&place.disk.path().join("none")).expect("nothing"), (0, 0));
}

#[test]
fn clear_and_shrink_keep_what_linked_folders_hold() {
    let (place, elsewhere) = (Place::new("qwen3-a"), tempfile::tempdir().expect("a folder"));
    ask(&place.warm(), &Random(7).tokens(300));
    let own = place.files();
    let folder = own[0].parent().expect("a folder").to_owned();
    let moved = elsewhere.path().join("moved");
    fs::rename(&folder, &moved).expect("moved");
    std::os::unix::fs::symlink(&moved, &folder).expect("linked");
    let held = || fs::read_dir(&moved).expect("a folder").count();
    let before = held();

    assert_eq!(disk_cache::list(place.disk.path()).expect("a folder").len(), 0);
    assert_eq!(disk_cache::clear(place.disk.path()).expect("a folder"), (0, 0));
    assert_eq!(held(), before);
    // The engine runs without a disk cache and evicts nothing there.
    let engine = place.start(place.with_disk(1));
    ask(&engine, &Random(8).tokens(300));
    engine.clear_cache().expect("runs");
    drop(engine);
    assert_eq!(held(), before);
}

#[test]
fn a_folder_that_cannot_be_had_costs_nothing_else() {
    let place = Place::new("qwen3-a");
    let file = place.disk.path().join("file");
    fs::write(&file, "not a folder").expect("writes");
    let disk_cache = Some(DiskCache { folder: file, bytes: 1 << 20, bits: None });
    let engine = place.start(Options { disk_cache, ..Options::default() });
    let prompt = Random(8).tokens(100);
    ask(&engine, &prompt);
    assert_eq!(ask(&engine, &prompt).usage.cache.source, Some(CacheSource::Ram));
}

#[test]
fn a_folder_that_goes_away_costs_nothing_else() {
    let place = Place::new("qwen3_5-text-sharded");
    let mut random = Random(10);
    let prompts = [random.tokens(300), random.tokens(300)];
    let expected = prompts.each_ref().map(|prompt| ask(&place.cold(), prompt).tokens);
    ask(&place.warm(), &prompts[0]);
    let engine = place.warm();
    fs::remove_dir_all(place.disk.path()).expect("a folder");
    for (prompt, expected) in prompts.iter().zip(expected) {
        assert_eq!(ask(&engine, prompt).tokens, expected);
        assert_eq!(ask(&engine, prompt).usage.cache.source, Some(CacheSource::Ram));
    }
    let stats = engine.cache_stats().expect("runs");
    assert_eq!((stats.failures, stats.disk_rejected), (0, 0), "{stats:?}");
}

/// Requests in random order to two engines that share a folder, with too little memory and disk, which restart.
#[test]
fn no_restart_changes_a_bit() {
    let rounds = std::env::var("LANNER_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(14);
    for golden in MODELS {
        let place = Place::new(golden);
        let cold = place.cold();
        let mut random = Random(9);
        let mut before: Vec<Vec<u32>> = vec![];
        let mut from_disk = 0;
        for round in 0..rounds {
            let mut options = || Options {
                prefill_chunk: random.choose(&[16, 64, 256]),
                prefix_cache_bytes: random.choose(&[30_000, 200_000, 1 << 30]),
                snapshot_interval: random.choose(&[0, 32, 500]),
                ..place.with_disk(random.choose(&[300_000, 1 << 30, 1 << 30]))
            };
            let engines = [place.start(options()), place.start(options())];
            for _ in 0..5 {
                let asked: Vec<Request> = (0..3).map(|_| any_request(&mut random, &before)).collect();
                let running: Vec<_> =
                    asked.iter().map(|r| submit(&engines[random.below(2)], r.clone())).collect();
                for (request, running) in asked.into_iter().zip(running) {
                    let got = answer(running);
                    assert_eq!(got.reason, FinishReason::Length);
                    let plain = Request { speculation: Some(Speculate::Off), ..request.clone() };
                    let expected = answer(submit(&cold, plain));
                    assert!(got.tokens == expected.tokens, "{golden}, {round}, {request:?}, {:?}", got.usage);
                    from_disk += usize::from(got.usage.cache.source == Some(CacheSource::Disk));
                    before.push([&request.prompt[..], &expected.ids()].concat());
                }
            }
            for engine in engines {
                assert_eq!(engine.cache_stats().expect("runs").failures, 0);
            }
        }
        assert!(from_disk > 0, "{golden}: nothing came from the disk");
    }
}
