//! Disk tier of the prefix cache: it outlives the engine, never changes an answer, even with
//! damaged files, and stays within its budget.

use std::{fs, path::PathBuf};

use lanner_engine::*;

use crate::support::{
    disk_model::{DiskModel, MODELS, ask, total_bytes},
    requests::{Random, answer, any_request, request, submit},
};

#[test]
fn restarted_engine_resumes_from_disk() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let mut random = Random(1);
        let head = random.tokens(700);
        let with = |tail: &[u32]| [&head[..], tail].concat();
        let expected = ask(&model.cold(), &with(&[5, 6, 7]));
        // Dropping an engine writes pending state.
        ask(&model.warm(), &with(&[9]));
        let again = model.warm();
        let got = ask(&again, &with(&[5, 6, 7]));
        assert_eq!(got.tokens, expected.tokens, "{golden}");
        assert_eq!(got.usage.cache.source, Some(CacheSource::Disk), "{golden}: {:?}", got.usage);
        assert!(got.usage.cached_tokens >= 700, "{golden}: {:?}", got.usage);
        // The state is in memory now.
        let third = ask(&again, &with(&[5, 6, 8]));
        assert_eq!(third.usage.cache.source, Some(CacheSource::Ram), "{golden}: {:?}", third.usage);
        let stats = again.cache_stats().expect("runs");
        assert_eq!((stats.disk_rejected, stats.failures), (0, 0), "{golden}: {stats:?}");
    }
}

#[test]
fn state_on_disk_is_not_written_again() {
    let model = DiskModel::new("qwen3_5-text-sharded");
    let prompt = Random(2).tokens(600);
    ask(&model.warm(), &prompt);
    let first = model.files();
    for _ in 0..3 {
        assert_eq!(ask(&model.warm(), &prompt).usage.cached_tokens, 599);
        assert_eq!(model.files(), first);
    }
    let stored = disk_cache::list(model.disk.path()).expect("a folder");
    assert_eq!((stored.len(), stored[0].files), (1, first.len()));
    assert_eq!(stored[0].tokens, 604 - 1, "each token once: {stored:?}");
}

/// Damages each file in each way, before the start and after it.
#[test]
fn damaged_state_file_is_removed_and_not_used() {
    for golden in ["qwen3-a", "gemma3_text-a", "qwen3_5-text-sharded"] {
        let model = DiskModel::new(golden);
        let mut random = Random(3);
        let prompt = random.tokens(450);
        let expected = ask(&model.cold(), &prompt).tokens;
        type Damage = fn(&mut Vec<u8>, &mut Random);
        let ways: [(&str, Damage); 7] = [
            ("emptied", |bytes, _| bytes.clear()),
            ("truncated", |bytes, random| bytes.truncate(random.below(bytes.len()))),
            ("longer", |bytes, _| bytes.extend(b"more")),
            ("a bit flipped in the header", |bytes, random| bytes[random.below(52)] ^= 1 << random.below(8)),
            ("a bit flipped", |bytes, random| {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }),
            ("its last byte changed", |bytes, _| *bytes.last_mut().expect("bytes") ^= 0x80),
            ("garbage", |bytes, random| bytes.iter_mut().for_each(|byte| *byte = random.next() as u8)),
        ];
        for (how, damage) in ways {
            for late in [false, true] {
                fs::remove_dir_all(model.disk.path()).expect("a folder");
                ask(&model.warm(), &prompt);
                let early = late.then(|| model.warm());
                for file in model.files() {
                    let mut bytes = fs::read(&file).expect("a file");
                    damage(&mut bytes, &mut random);
                    fs::write(&file, bytes).expect("writes");
                }
                let damaged: Vec<_> =
                    model.files().iter().map(|f| (f.clone(), fs::read(f).expect("a file"))).collect();
                let engine = early.unwrap_or_else(|| model.warm());
                let got = ask(&engine, &prompt);
                assert_eq!(got.tokens, expected, "{golden}, {how}");
                assert_eq!(got.usage.cached_tokens, 0, "{golden}, {how}");
                assert!(engine.cache_stats().expect("runs").disk_rejected > 0, "{golden}, {how}");
                drop(engine);
                for (file, bytes) in damaged {
                    assert!(
                        fs::read(&file).ok() != Some(bytes),
                        "{golden}, {how}: a damaged file is still there"
                    );
                }
                // State written in its place is sound.
                let again = ask(&model.warm(), &prompt);
                assert_eq!(
                    (again.usage.cache.source, again.tokens),
                    (Some(CacheSource::Disk), expected.clone())
                );
            }
        }
    }
}

#[test]
fn state_files_of_other_models_are_not_used() {
    let model = DiskModel::new("qwen3-a");
    let other = DiskModel::new("qwen3_5-text-sharded");
    let prompt = Random(4).tokens(300);
    let expected = ask(&other.cold(), &prompt).tokens;
    ask(&model.warm(), &prompt);
    ask(&other.warm(), &prompt);
    let folder = other.files()[0].parent().expect("a folder").to_owned();
    // Valid files of another model, and files of this model under wrong names.
    let own = other.files();
    for (i, file) in model.files().iter().enumerate() {
        fs::copy(file, folder.join(file.file_name().expect("a name"))).expect("copies");
        if let Some(own) = own.get(i) {
            fs::copy(file, own).expect("copies");
        }
    }
    if own.len() > 1 {
        fs::copy(own.last().expect("a file"), &own[0]).expect("copies");
    }
    fs::write(folder.join("1-1.tmp"), "of a dead writer").expect("writes");
    fs::write(folder.join("notes.txt"), "unrelated").expect("writes");
    let got = ask(&other.warm(), &prompt);
    assert_eq!(got.tokens, expected);
    assert!(!folder.join("1-1.tmp").exists());
    assert!(folder.join("notes.txt").exists());
    let stats = other.warm().cache_stats().expect("runs");
    assert_eq!(stats.disk_rejected, 0, "wrong files are removed: {stats:?}");
}

#[test]
fn state_of_other_precision_or_weights_is_not_used() {
    let model = DiskModel::new("qwen3-a");
    let prompt = Random(5).tokens(300);
    ask(&model.warm(), &prompt);
    let others = [
        Options { precision: Precision::Float32, ..model.with_disk(1 << 30) },
        Options { kv_cache_dtype: Some(Dtype::Bfloat16), ..model.with_disk(1 << 30) },
    ];
    for other in others {
        assert_eq!(ask(&model.start(other), &prompt).usage.cached_tokens, 0);
    }
    let stored = disk_cache::list(model.disk.path()).expect("a folder");
    // Other weights in a file of the same name, size and time.
    let weights = model.folder.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("a file");
    let time = fs::metadata(&weights).and_then(|data| data.modified()).expect("a time");
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).expect("writes");
    let file = fs::File::options().write(true).open(&weights).expect("a file");
    file.set_modified(time).expect("a time");
    assert_eq!(ask(&model.warm(), &prompt).usage.cached_tokens, 0);
    assert!(!stored.is_empty());
}

#[test]
fn disk_cache_stays_within_budget_and_keeps_used_state() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let mut random = Random(6);
        let used_prompt = random.tokens(300);
        ask(&model.warm(), &used_prompt);
        let budget = total_bytes(&model.files()) * 4;
        for _ in 0..12 {
            let engine = model.start(model.with_disk(budget as usize));
            let used = ask(&engine, &used_prompt).usage;
            assert!(used.cached_tokens >= 200, "{golden}: {used:?}");
            let other = random.tokens(300);
            ask(&engine, &other);
            drop(engine);
            let files = model.files();
            assert!(total_bytes(&files) <= budget, "{golden}: {} of {budget} bytes", total_bytes(&files));
        }
        // A lower one.
        model.start(model.with_disk(budget as usize / 8));
        assert!(total_bytes(&model.files()) <= budget / 8, "{golden}");
    }
}

#[test]
fn clear_cache_removes_state_files() {
    let model = DiskModel::new("lfm2-a");
    let prompt = Random(7).tokens(300);
    let engine = model.warm();
    ask(&engine, &prompt);
    engine.clear_cache().expect("runs");
    assert_eq!(model.files(), Vec::<PathBuf>::new());
    assert_eq!(ask(&engine, &prompt).usage.cached_tokens, 0);
    drop(engine);
    assert!(!model.files().is_empty());
    let (files, bytes) = disk_cache::clear(model.disk.path()).expect("a folder");
    assert!(files > 0 && bytes > 0 && model.files().is_empty());
    assert_eq!(disk_cache::clear(&model.disk.path().join("none")).expect("nothing"), (0, 0));
}

#[test]
fn clear_and_eviction_do_not_follow_linked_folders() {
    let (model, elsewhere) = (DiskModel::new("qwen3-a"), tempfile::tempdir().expect("a folder"));
    ask(&model.warm(), &Random(7).tokens(300));
    let own = model.files();
    let folder = own[0].parent().expect("a folder").to_owned();
    let moved = elsewhere.path().join("moved");
    fs::rename(&folder, &moved).expect("moved");
    std::os::unix::fs::symlink(&moved, &folder).expect("linked");
    let total_bytes = || fs::read_dir(&moved).expect("a folder").count();
    let before = total_bytes();

    assert_eq!(disk_cache::list(model.disk.path()).expect("a folder").len(), 0);
    assert_eq!(disk_cache::clear(model.disk.path()).expect("a folder"), (0, 0));
    assert_eq!(total_bytes(), before);
    // The engine runs without a disk cache and evicts nothing.
    let engine = model.start(model.with_disk(1));
    ask(&engine, &Random(8).tokens(300));
    engine.clear_cache().expect("runs");
    drop(engine);
    assert_eq!(total_bytes(), before);
}

#[test]
fn engine_runs_without_unusable_disk_folder() {
    let model = DiskModel::new("qwen3-a");
    let file = model.disk.path().join("file");
    fs::write(&file, "not a folder").expect("writes");
    let disk_cache = Some(DiskCache { folder: file, bytes: 1 << 20, bits: None });
    let engine = model.start(Options { disk_cache, ..Options::default() });
    let prompt = Random(8).tokens(100);
    ask(&engine, &prompt);
    assert_eq!(ask(&engine, &prompt).usage.cache.source, Some(CacheSource::Ram));
}

#[test]
fn engine_runs_after_disk_folder_is_deleted() {
    let model = DiskModel::new("qwen3_5-text-sharded");
    let mut random = Random(10);
    let prompts = [random.tokens(300), random.tokens(300)];
    let expected = prompts.each_ref().map(|prompt| ask(&model.cold(), prompt).tokens);
    ask(&model.warm(), &prompts[0]);
    let engine = model.warm();
    fs::remove_dir_all(model.disk.path()).expect("a folder");
    for (prompt, expected) in prompts.iter().zip(expected) {
        assert_eq!(ask(&engine, prompt).tokens, expected);
        assert_eq!(ask(&engine, prompt).usage.cache.source, Some(CacheSource::Ram));
    }
    let stats = engine.cache_stats().expect("runs");
    assert_eq!((stats.failures, stats.disk_rejected), (0, 0), "{stats:?}");
}

/// Random requests to two engines that share a folder, with little memory and disk, and restart.
#[test]
fn restarts_do_not_change_answers() {
    let rounds = std::env::var("LANNER_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(14);
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let cold = model.cold();
        let mut random = Random(9);
        let mut before: Vec<Vec<u32>> = vec![];
        let mut from_disk = 0;
        for round in 0..rounds {
            let mut options = || Options {
                prefill_chunk: random.choose(&[16, 64, 256]),
                prefix_cache_bytes: random.choose(&[30_000, 200_000, 1 << 30]),
                snapshot_interval: random.choose(&[0, 32, 500]),
                ..model.with_disk(random.choose(&[300_000, 1 << 30, 1 << 30]))
            };
            let engines = [model.start(options()), model.start(options())];
            for _ in 0..5 {
                let requests: Vec<Request> = (0..3).map(|_| any_request(&mut random, &before)).collect();
                let running: Vec<_> =
                    requests.iter().map(|r| submit(&engines[random.below(2)], r.clone())).collect();
                for (request, running) in requests.into_iter().zip(running) {
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
        assert!(from_disk > 0, "{golden}: no state came from the disk");
    }
}

#[test]
fn state_of_another_salt_is_found_neither_in_memory_nor_on_disk() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let prompt = Random(11).tokens(600);
        let salts = [None, Some(CacheSalt::new([Some("a")])), Some(CacheSalt::new([Some("b")]))];
        let ask = |engine: &Engine, salt| {
            answer(submit(engine, Request { cache_salt: salt, ..request(prompt.clone(), 4) }))
        };
        let expected = ask(&model.cold(), None).tokens;
        let engine = model.warm();
        for salt in salts {
            let first = ask(&engine, salt);
            assert_eq!(first.tokens, expected, "{golden}");
            assert_eq!(first.usage.cached_tokens, 0, "{golden}: {salt:?} {:?}", first.usage);
            assert_eq!((first.usage.cache.reusable, first.usage.cache.miss), (0, None), "{golden}");
            let again = ask(&engine, salt).usage;
            assert_eq!((again.cached_tokens, again.cache.source), (599, Some(CacheSource::Ram)), "{golden}");
        }
        drop(engine);
        let restarted = model.warm();
        let unknown = ask(&restarted, Some(CacheSalt::new([Some("c")]))).usage;
        assert_eq!((unknown.cached_tokens, unknown.cache.reusable), (0, 0), "{golden}");
        for salt in salts {
            let again = ask(&restarted, salt);
            assert_eq!(again.tokens, expected, "{golden}");
            let report = (again.usage.cached_tokens, again.usage.cache.source);
            assert_eq!(report, (599, Some(CacheSource::Disk)), "{golden}: {salt:?}");
        }
        assert_eq!(restarted.cache_stats().expect("runs").disk_rejected, 0, "{golden}");
    }
}
