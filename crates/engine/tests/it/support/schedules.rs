//! Random schedules of requests, whose answers are those of requests alone.

use lanner_engine::*;

use super::requests::{Random, answer, any_request, submit};

/// Bursts of concurrent requests, some of them cancelled; later ones may continue their answers.
/// Each answer is compared with that of `cold`, to which requests are given one at a time.
pub(crate) fn schedule(
    golden: &str,
    load: impl Fn(Options) -> Engine,
    seed: u64,
    cold: &Engine,
) -> CacheStats {
    let mut random = Random(seed);
    let options = Options {
        prefill_chunk: random.choose(&[5, 16, 64, 256]),
        max_batch: random.choose(&[1, 3, 8]),
        prefix_cache_bytes: random.choose(&[30_000, 200_000, 1 << 30, 1 << 30]),
        snapshot_interval: random.choose(&[0, 32, 500]),
        queue_ahead: random.choose(&[None, Some(true)]),
        ..Options::default()
    };
    let engine = load(options.clone());
    let mut before: Vec<Vec<u32>> = vec![];
    for burst in 0..3 {
        let count = random.below(6) + 1;
        let mut submitted = vec![];
        for _ in 0..count {
            let request = any_request(&mut random, &before);
            before.push(request.prompt.clone());
            let mut running = submit(&engine, request.clone());
            match random.below(8) {
                0 => running.handle.cancel(),
                1 => running.early.extend(running.events.recv()),
                2 => {
                    running.early.extend(running.events.recv());
                    running.handle.cancel();
                }
                _ => {}
            }
            submitted.push((request, running));
            if random.one_in(10) {
                engine.clear_cache().expect("runs");
            }
        }
        for (request, running) in submitted {
            let got = answer(running);
            let plain = Request { speculation: Some(Speculate::Off), ..request.clone() };
            let expected = answer(submit(cold, plain));
            let what =
                || format!("{golden}, seed {seed}, burst {burst}, {options:?}, {request:?}, {:?}", got.usage);
            match got.reason {
                FinishReason::Cancelled => assert!(expected.tokens.starts_with(&got.tokens), "{}", what()),
                _ => assert!(expected.tokens == got.tokens, "{}", what()),
            }
            assert!(got.usage.cached_tokens < request.prompt.len(), "{}", what());
            before.push([&request.prompt[..], &expected.ids()].concat());
        }
        let stats = engine.cache_stats().expect("runs");
        assert!(stats.bytes <= stats.budget_bytes && stats.failures == 0, "{golden}, seed {seed}: {stats:?}");
    }
    engine.cache_stats().expect("runs")
}
