//! Disk tier with compressed keys and values: smaller files, close answers, reported as lossy.

use std::fs;

use lanner_engine::*;

use crate::support::{
    disk_model::{DiskModel, MODELS, ask, total_bytes},
    requests::{Answer, Random, answer, any_request, request, submit},
};

const BITS: [CacheBits; 2] = [CacheBits::Eight, CacheBits::Four];
/// Restarts in a random schedule: more follow until lossy answers have shown.
const MIN_ROUNDS: usize = 6;
const MAX_ROUNDS: usize = 60;

fn compressed(model: &DiskModel, bits: CacheBits) -> Engine {
    model.start(with_bits(model, Some(bits)))
}

fn with_bits(model: &DiskModel, bits: Option<CacheBits>) -> Options {
    let options = model.with_disk(1 << 30);
    Options { disk_cache: options.disk_cache.map(|disk| DiskCache { bits, ..disk }), ..options }
}

/// The cache source, and whether the answer is reported as lossy.
fn source_and_lossy(answer: &Answer) -> (Option<CacheSource>, bool) {
    let lossy = &answer.usage.lossy;
    assert!(lossy.is_empty() || *lossy == [Lossy::CompressedCache], "{lossy:?}");
    (answer.usage.cache.source, !lossy.is_empty())
}

const RAM: Option<CacheSource> = Some(CacheSource::Ram);
const DISK: Option<CacheSource> = Some(CacheSource::Disk);

#[test]
fn answer_computed_from_compressed_state_is_reported_lossy() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let mut random = Random(1);
        let (head, other) = (random.tokens(700), random.tokens(300));
        let with = |tail: &[u32]| [&head[..], tail].concat();
        let exact = model.cold();
        let engine = compressed(&model, CacheBits::Eight);
        // State computed by this engine is exact, also if it is reused.
        assert_eq!(source_and_lossy(&ask(&engine, &with(&[9]))), (None, false), "{golden}");
        assert_eq!(source_and_lossy(&ask(&engine, &with(&[5]))), (RAM, false), "{golden}");
        drop(engine);

        let engine = compressed(&model, CacheBits::Eight);
        assert_eq!(source_and_lossy(&ask(&engine, &other)), (None, false), "{golden}");
        let first = ask(&engine, &with(&[5, 6, 7]));
        assert_eq!(source_and_lossy(&first), (DISK, true), "{golden}");
        assert_eq!(source_and_lossy(&ask(&engine, &with(&[5, 6, 8]))), (RAM, true), "{golden}");
        // The state after the answer was computed by this engine from restored state.
        let further = [with(&[5, 6, 7]), first.ids(), vec![11, 12]].concat();
        let second = ask(&engine, &further);
        assert_eq!(source_and_lossy(&second), (RAM, true), "{golden}");
        assert!(second.usage.cached_tokens > 700, "{golden}: {:?}", second.usage);
        // Other prompts are not affected.
        assert_eq!(source_and_lossy(&ask(&engine, &[&other[..], &[4]].concat())), (RAM, false), "{golden}");
        assert_eq!(source_and_lossy(&ask(&engine, &random.tokens(100))), (None, false), "{golden}");
        // A request that computes its whole prompt is exact, and does not affect others.
        let whole = Request { logits: true, ..request(with(&[5, 6, 7]), 4) };
        let computed = answer(submit(&engine, whole.clone()));
        assert_eq!(source_and_lossy(&computed), (None, false), "{golden}");
        assert_eq!(computed.tokens, answer(submit(&exact, whole)).tokens, "{golden}");
        assert_eq!(source_and_lossy(&ask(&engine, &with(&[5, 6, 7]))), (RAM, true), "{golden}");
        drop(engine);

        // Lossy state is written too.
        let again = ask(&compressed(&model, CacheBits::Eight), &[&further[..], &[13]].concat());
        assert_eq!(source_and_lossy(&again), (DISK, true), "{golden}");
        assert!(again.usage.cached_tokens > 700, "{golden}: {:?}", again.usage);
    }
}

/// Random schedules with restarts and little memory, compared with a cold engine.
#[test]
fn answer_not_reported_lossy_is_exact() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let cold = model.cold();
        let mut random = Random(12);
        let mut before: Vec<Vec<u32>> = vec![];
        let (mut exact, mut lossy, mut changed) = (0, 0, 0);
        // Which requests find lossy state, and which of them then answer otherwise, depends on when
        // files are written.
        for round in 0..MAX_ROUNDS {
            if round >= MIN_ROUNDS && [exact, lossy, changed].iter().all(|count| *count > 0) {
                break;
            }
            let options = Options {
                prefill_chunk: random.choose(&[16, 64, 256]),
                prefix_cache_bytes: random.choose(&[30_000, 200_000, 1 << 30]),
                snapshot_interval: random.choose(&[0, 32, 500]),
                ..with_bits(&model, Some(CacheBits::Four))
            };
            let engine = model.start(options);
            for _ in 0..5 {
                let requests: Vec<Request> = (0..3).map(|_| any_request(&mut random, &before)).collect();
                let running: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
                for (request, running) in requests.into_iter().zip(running) {
                    let got = answer(running);
                    assert_eq!(got.reason, FinishReason::Length);
                    let plain = Request { speculation: Some(Speculate::Off), ..request.clone() };
                    let expected = answer(submit(&cold, plain));
                    let same = got.tokens == expected.tokens;
                    let (_, is_lossy) = source_and_lossy(&got);
                    assert!(same || is_lossy, "{golden}, {round}, {request:?}, {:?}", got.usage);
                    *(if is_lossy { &mut lossy } else { &mut exact }) += 1;
                    changed += usize::from(!same);
                    before.push([&request.prompt[..], &expected.ids()].concat());
                }
            }
            assert_eq!(engine.cache_stats().expect("runs").failures, 0);
        }
        assert!(
            exact > 0 && lossy > 0 && changed > 0,
            "{golden}: {exact} exact, {lossy} lossy, {changed} changed"
        );
    }
}

#[test]
fn compressed_files_are_smaller_and_answers_close() {
    for golden in MODELS {
        let exact = DiskModel::new(golden);
        let prompt = Random(2).tokens(600);
        let longer = [&prompt[..], &[7, 8]].concat();
        let expected = ask(&exact.cold(), &longer);
        ask(&exact.warm(), &prompt);
        let whole = total_bytes(&exact.files());
        let first = |answer: &Answer| {
            let (_, bits) = &answer.tokens[0];
            f32::from_bits(bits[0])
        };
        let mut sizes = vec![];
        for (bits, bound) in [(CacheBits::Eight, 0.05), (CacheBits::Four, 0.5)] {
            let model = DiskModel::new(golden);
            ask(&compressed(&model, bits), &prompt);
            sizes.push(total_bytes(&model.files()));
            let got = ask(&compressed(&model, bits), &longer);
            assert_eq!(source_and_lossy(&got), (DISK, true), "{golden} {bits:?}");
            let off = (first(&got) - first(&expected)).abs();
            eprintln!(
                "{golden} {bits:?}: {:.3} of the size, log-probability off by {off:.5}",
                sizes[sizes.len() - 1] as f64 / whole as f64
            );
            assert!(off < bound, "{golden} {bits:?}: {off}");
            let stored = disk_cache::list(model.disk.path()).expect("a folder");
            assert_eq!(stored.iter().map(|model| model.bits).collect::<Vec<_>>(), [Some(bits)]);
        }
        assert!(sizes[1] < sizes[0] && sizes[0] < whole, "{golden}: {sizes:?} of {whole}");
    }
}

/// Neither side finds what the other wrote, not even if its files are put in place.
#[test]
fn state_files_of_another_format_are_not_used() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let formats = [None, Some(CacheBits::Eight), Some(CacheBits::Four)];
        for (written, read) in formats.iter().flat_map(|written| formats.map(|read| (*written, read))) {
            if written == read {
                continue;
            }
            let model = DiskModel::new(golden);
            let prompt = Random(3).tokens(400);
            let expected = ask(&model.cold(), &prompt).tokens;
            ask(&model.start(with_bits(&model, written)), &prompt);
            let foreign = model.files();
            let engine = model.start(with_bits(&model, read));
            let got = ask(&engine, &prompt);
            assert_eq!(
                (source_and_lossy(&got), &got.tokens),
                ((None, false), &expected),
                "{golden}: {written:?}, {read:?}"
            );
            drop(engine);
            let own: Vec<_> = model.files().into_iter().filter(|file| !foreign.contains(file)).collect();
            for (i, file) in foreign.iter().enumerate() {
                let folder = own[0].parent().expect("a folder");
                fs::copy(file, folder.join(file.file_name().expect("a name"))).expect("copies");
                fs::copy(file, &own[i % own.len()]).expect("copies");
            }
            let engine = model.start(with_bits(&model, read));
            assert!(engine.cache_stats().expect("runs").disk_rejected > 0, "{golden}: {written:?}, {read:?}");
            let got = ask(&engine, &prompt);
            assert_eq!(got.tokens, expected, "{golden}: {written:?}, {read:?}");
            assert_eq!(source_and_lossy(&got), (None, false), "{golden}: {written:?}, {read:?}");
        }
    }
}

#[test]
fn damaged_compressed_file_is_removed_and_not_used() {
    for (golden, bits) in MODELS.into_iter().flat_map(|golden| BITS.map(|bits| (golden, bits))) {
        let model = DiskModel::new(golden);
        let mut random = Random(4);
        let prompt = random.tokens(450);
        let expected = ask(&model.cold(), &prompt).tokens;
        ask(&compressed(&model, bits), &prompt);
        let early = compressed(&model, bits);
        for file in model.files() {
            let mut bytes = fs::read(&file).expect("a file");
            let at = bytes.len() - 1 - random.below(bytes.len() / 2);
            bytes[at] ^= 1 << random.below(8);
            fs::write(&file, bytes).expect("writes");
        }
        let got = ask(&early, &prompt);
        assert_eq!((source_and_lossy(&got), &got.tokens), ((None, false), &expected), "{golden} {bits:?}");
        assert!(early.cache_stats().expect("runs").disk_rejected > 0, "{golden} {bits:?}");
        drop(early);
        assert_eq!(
            source_and_lossy(&ask(&compressed(&model, bits), &prompt)),
            (DISK, true),
            "{golden} {bits:?}"
        );
    }
}
