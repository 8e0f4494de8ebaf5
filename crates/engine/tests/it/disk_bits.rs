//! The disk tier with keys and values compressed: smaller, near, and said by every answer that it may have changed.

use std::fs;

use engine::*;

use crate::support::{
    disk_model::{MODELS, Place, ask, held},
    requests::{Answer, Random, answer, any_request, request, submit},
};

const BITS: [CacheBits; 2] = [CacheBits::Eight, CacheBits::Four];

fn packed(place: &Place, bits: CacheBits) -> Engine {
    place.start(with_bits(place, Some(bits)))
}

fn with_bits(place: &Place, bits: Option<CacheBits>) -> Options {
    let options = place.with_disk(1 << 30);
    Options { disk_cache: options.disk_cache.map(|disk| DiskCache { bits, ..disk }), ..options }
}

/// Where it came from, and whether it says that it may differ.
fn told(answer: &Answer) -> (Option<CacheSource>, bool) {
    let lossy = &answer.usage.lossy;
    assert!(lossy.is_empty() || *lossy == [Lossy::CompressedCache], "{lossy:?}");
    (answer.usage.cache.source, !lossy.is_empty())
}

const RAM: Option<CacheSource> = Some(CacheSource::Ram);
const DISK: Option<CacheSource> = Some(CacheSource::Disk);

#[test]
fn whatever_is_computed_behind_compressed_state_says_so() {
    for golden in MODELS {
        let place = Place::new(golden);
        let mut random = Random(1);
        let (head, other) = (random.tokens(700), random.tokens(300));
        let with = |tail: &[u32]| [&head[..], tail].concat();
        let exact = place.cold();
        let engine = packed(&place, CacheBits::Eight);
        // What was computed here is exact, also when it is reused.
        assert_eq!(told(&ask(&engine, &with(&[9]))), (None, false), "{golden}");
        assert_eq!(told(&ask(&engine, &with(&[5]))), (RAM, false), "{golden}");
        drop(engine);

        let engine = packed(&place, CacheBits::Eight);
        assert_eq!(told(&ask(&engine, &other)), (None, false), "{golden}");
        let first = ask(&engine, &with(&[5, 6, 7]));
        assert_eq!(told(&first), (DISK, true), "{golden}");
        assert_eq!(told(&ask(&engine, &with(&[5, 6, 8]))), (RAM, true), "{golden}");
        // The state behind the answer was computed here, on top of what was restored.
        let further = [with(&[5, 6, 7]), first.ids(), vec![11, 12]].concat();
        let second = ask(&engine, &further);
        assert_eq!(told(&second), (RAM, true), "{golden}");
        assert!(second.usage.cached_tokens > 700, "{golden}: {:?}", second.usage);
        // Nobody else is concerned.
        assert_eq!(told(&ask(&engine, &[&other[..], &[4]].concat())), (RAM, false), "{golden}");
        assert_eq!(told(&ask(&engine, &random.tokens(100))), (None, false), "{golden}");
        // Who computes all of the prompt gets the model's own answer, and changes nothing for others.
        let whole = Request { logits: true, ..request(with(&[5, 6, 7]), 4) };
        let computed = answer(submit(&engine, whole.clone()));
        assert_eq!(told(&computed), (None, false), "{golden}");
        assert_eq!(computed.tokens, answer(submit(&exact, whole)).tokens, "{golden}");
        assert_eq!(told(&ask(&engine, &with(&[5, 6, 7]))), (RAM, true), "{golden}");
        drop(engine);

        // It went to the disk as well.
        let again = ask(&packed(&place, CacheBits::Eight), &[&further[..], &[13]].concat());
        assert_eq!(told(&again), (DISK, true), "{golden}");
        assert!(again.usage.cached_tokens > 700, "{golden}: {:?}", again.usage);
    }
}

/// Random schedules with restarts, where memory is short: who is not told otherwise has the bits of a lone cold run.
#[test]
fn what_does_not_say_so_is_exact() {
    for golden in MODELS {
        let place = Place::new(golden);
        let cold = place.cold();
        let mut random = Random(12);
        let mut before: Vec<Vec<u32>> = vec![];
        let (mut exact, mut lossy, mut changed) = (0, 0, 0);
        for round in 0..6 {
            let options = Options {
                prefill_chunk: random.choose(&[16, 64, 256]),
                prefix_cache_bytes: random.choose(&[30_000, 200_000, 1 << 30]),
                snapshot_interval: random.choose(&[0, 32, 500]),
                ..with_bits(&place, Some(CacheBits::Four))
            };
            let engine = place.start(options);
            for _ in 0..5 {
                let asked: Vec<Request> = (0..3).map(|_| any_request(&mut random, &before)).collect();
                let running: Vec<_> = asked.iter().map(|r| submit(&engine, r.clone())).collect();
                for (request, running) in asked.into_iter().zip(running) {
                    let got = answer(running);
                    assert_eq!(got.reason, FinishReason::Length);
                    let plain = Request { speculation: Some(Speculate::Off), ..request.clone() };
                    let expected = answer(submit(&cold, plain));
                    let same = got.tokens == expected.tokens;
                    let (_, is_lossy) = told(&got);
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
fn files_shrink_and_answers_stay_near() {
    for golden in MODELS {
        let exact = Place::new(golden);
        let prompt = Random(2).tokens(600);
        let asked = [&prompt[..], &[7, 8]].concat();
        let expected = ask(&exact.cold(), &asked);
        ask(&exact.warm(), &prompt);
        let whole = held(&exact.files());
        let first = |answer: &Answer| {
            let (_, bits) = &answer.tokens[0];
            f32::from_bits(bits[0])
        };
        let mut sizes = vec![];
        for (bits, bound) in [(CacheBits::Eight, 0.05), (CacheBits::Four, 0.5)] {
            let place = Place::new(golden);
            ask(&packed(&place, bits), &prompt);
            sizes.push(held(&place.files()));
            let got = ask(&packed(&place, bits), &asked);
            assert_eq!(told(&got), (DISK, true), "{golden} {bits:?}");
            let off = (first(&got) - first(&expected)).abs();
            eprintln!(
                "{golden} {bits:?}: {:.3} of the size, log-probability off by {off:.5}",
                sizes[sizes.len() - 1] as f64 / whole as f64
            );
            assert!(off < bound, "{golden} {bits:?}: {off}");
            let stored = disk_cache::list(place.disk.path()).expect("a folder");
            assert_eq!(stored.iter().map(|model| model.bits).collect::<Vec<_>>(), [Some(bits)]);
        }
        assert!(sizes[1] < sizes[0] && sizes[0] < whole, "{golden}: {sizes:?} of {whole}");
    }
}

/// Neither side finds what the other wrote, not even if its files are put in place.
#[test]
fn formats_do_not_mix() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let formats = [None, Some(CacheBits::Eight), Some(CacheBits::Four)];
        for (wrote, reads) in formats.iter().flat_map(|wrote| formats.map(|reads| (*wrote, reads))) {
            if wrote == reads {
                continue;
            }
            let place = Place::new(golden);
            let prompt = Random(3).tokens(400);
            let expected = ask(&place.cold(), &prompt).tokens;
            ask(&place.start(with_bits(&place, wrote)), &prompt);
            let foreign = place.files();
            let engine = place.start(with_bits(&place, reads));
            let got = ask(&engine, &prompt);
            assert_eq!(
                (told(&got), &got.tokens),
                ((None, false), &expected),
                "{golden}: {wrote:?}, {reads:?}"
            );
            drop(engine);
            let own: Vec<_> = place.files().into_iter().filter(|file| !foreign.contains(file)).collect();
            for (i, file) in foreign.iter().enumerate() {
                let folder = own[0].parent().expect("a folder");
                fs::copy(file, folder.join(file.file_name().expect("a name"))).expect("copies");
                fs::copy(file, &own[i % own.len()]).expect("copies");
            }
            let engine = place.start(with_bits(&place, reads));
            assert!(engine.cache_stats().expect("runs").disk_rejected > 0, "{golden}: {wrote:?}, {reads:?}");
            let got = ask(&engine, &prompt);
            assert_eq!(got.tokens, expected, "{golden}: {wrote:?}, {reads:?}");
            assert_eq!(told(&got), (None, false), "{golden}: {wrote:?}, {reads:?}");
        }
    }
}

#[test]
fn a_broken_compressed_file_is_removed_and_never_used() {
    for (golden, bits) in MODELS.into_iter().flat_map(|golden| BITS.map(|bits| (golden, bits))) {
        let place = Place::new(golden);
        let mut random = Random(4);
        let prompt = random.tokens(450);
        let expected = ask(&place.cold(), &prompt).tokens;
        ask(&packed(&place, bits), &prompt);
        let early = packed(&place, bits);
        for file in place.files() {
            let mut bytes = fs::read(&file).expect("a file");
            let at = bytes.len() - 1 - random.below(bytes.len() / 2);
            bytes[at] ^= 1 << random.below(8);
            fs::write(&file, bytes).expect("writes");
        }
        let got = ask(&early, &prompt);
        assert_eq!((told(&got), &got.tokens), ((None, false), &expected), "{golden} {bits:?}");
        assert!(early.cache_stats().expect("runs").disk_rejected > 0, "{golden} {bits:?}");
        drop(early);
        assert_eq!(told(&ask(&packed(&place, bits), &prompt)), (DISK, true), "{golden} {bits:?}");
    }
}
