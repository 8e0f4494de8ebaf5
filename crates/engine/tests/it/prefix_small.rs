//! A prefix cache that is too small for a prompt: it keeps as much as fits, reports what did not
//! fit, and costs nothing.

use std::{sync::Arc, time::Instant};

use lanner_engine::*;

use crate::support::{
    checkpoint,
    requests::{Answer, Random, answer, request, submit},
};

fn load(golden: &str, options: Options) -> Engine {
    let options = Options { device: Some(Device::Cpu), ..options };
    if golden == "merlin" {
        let merlin = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
        return start(Checkpoint::Folder(merlin), options, |_| {}).expect("loads");
    }
    let folder = checkpoint::folder(golden);
    start(Checkpoint::Folder(folder.path().into()), options, |_| {}).expect("loads")
}

fn with_budget(bytes: usize) -> Options {
    Options { prefix_cache_bytes: bytes, ..Options::default() }
}

fn ask(engine: &Engine, prompt: &[u32]) -> Answer {
    answer(submit(engine, Request { speculation: Some(Speculate::Off), ..request(prompt.to_vec(), 4) }))
}

fn miss(usage: &Usage) -> Option<(MissReason, usize)> {
    usage.cache.miss.map(|miss| (miss.reason, miss.position))
}

/// Bytes of the state of a sequence's first `tokens`.
fn state_bytes(engine: &Engine, tokens: usize) -> usize {
    engine.info().memory.stored.as_ref().expect("known").at(tokens)
}

#[test]
fn full_attention_state_too_large_for_cache_is_stored_in_part() {
    for golden in ["qwen3-a", "deepseek_v3-a"] {
        let (cold, mut random) = (load(golden, with_budget(0)), Random(1));
        let prompt = random.tokens(1500);
        let budget = state_bytes(&cold, 700) + 3;
        let engine = load(golden, with_budget(budget));
        let first = ask(&engine, &prompt);
        assert_eq!(miss(&first.usage), None, "{golden}: first request");
        let again = ask(&engine, &prompt);
        assert_eq!(again.tokens, ask(&cold, &prompt).tokens, "{golden}");
        let report = (again.usage.cached_tokens, miss(&again.usage));
        assert_eq!(report, (700, Some((MissReason::TooLarge, 700))), "{golden}");
        assert_eq!(again.usage.cache.reusable, 1499, "{golden}");
        // Another long prompt evicts its end first.
        let mut branch = prompt.clone();
        branch[400] = 251;
        ask(&engine, &branch);
        let back = ask(&engine, &prompt).usage;
        assert!(back.cached_tokens >= 400, "{golden}: {back:?}");
        assert!(miss(&back).is_some(), "{golden}: {back:?}");
        let stats = engine.cache_stats().expect("runs");
        assert!(stats.bytes <= budget && stats.failures == 0, "{golden}: {stats:?}");
    }
}

#[test]
fn hybrid_state_too_large_for_cache_is_stored_at_earlier_snapshot() {
    for golden in ["qwen3_5-text-sharded", "gemma3_text-a", "lfm2-a"] {
        let (cold, mut random) = (load(golden, with_budget(0)), Random(2));
        let prompt = random.tokens(1500);
        let engine = load(golden, Options { prefill_chunk: 256, ..with_budget(state_bytes(&cold, 700)) });
        ask(&engine, &prompt);
        let again = ask(&engine, &prompt);
        assert_eq!(again.tokens, ask(&cold, &prompt).tokens, "{golden}");
        // The last step that ends within 700 tokens.
        let report = (again.usage.cached_tokens, miss(&again.usage));
        assert_eq!(report, (512, Some((MissReason::TooLarge, 512))), "{golden}");
    }
}

#[test]
fn cache_smaller_than_snapshot_reports_too_large() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded", "lfm2-a"] {
        let engine = load(golden, with_budget(1));
        let prompt = Random(3).tokens(300);
        ask(&engine, &prompt);
        let again = ask(&engine, &prompt).usage;
        assert_eq!((again.cached_tokens, miss(&again)), (0, Some((MissReason::TooLarge, 0))), "{golden}");
        let mut other = prompt.clone();
        other[290] = 251;
        assert_eq!(miss(&ask(&engine, &other).usage), Some((MissReason::TooLarge, 0)), "{golden}");
        assert_eq!(engine.cache_stats().expect("runs").copied_bytes, 0, "{golden}");
    }
}

/// Prompt steps, computed tokens and bytes copied for a sequence of prompts.
fn work(golden: &str, budget: usize) -> [u64; 3] {
    let metrics: Arc<Metrics> = Arc::default();
    let engine = load(golden, Options { metrics: metrics.clone(), ..with_budget(budget) });
    let mut random = Random(4);
    let prompts: Vec<Vec<u32>> = (0..3).map(|_| random.tokens(1700)).collect();
    for i in [0, 1, 0, 2, 1] {
        let breakpoints = vec![500, 1690];
        let asked = Request {
            cache_breakpoints: breakpoints,
            speculation: Some(Speculate::Off),
            ..request(prompts[i].clone(), 3)
        };
        answer(submit(&engine, asked));
    }
    let copied = engine.cache_stats().expect("runs").copied_bytes as u64;
    drop(engine);
    [metrics.prompt_steps.get(), metrics.step_tokens.get(), copied]
}

#[test]
fn too_small_cache_takes_no_more_steps_than_none() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded", "gemma3_text-a"] {
        let size = load(golden, with_budget(0)).info().memory.stored.clone().expect("known");
        let [steps, tokens, _] = work(golden, 0);
        for budget in [1, size.at(100), size.at(400)] {
            let [own_steps, own_tokens, copied] = work(golden, budget);
            assert!(
                own_steps <= steps && own_tokens <= tokens,
                "{golden}, {budget}: {own_steps} of {steps} steps"
            );
            // Each prompt is copied at most once, and its end again.
            assert!(
                copied <= 10 * budget as u64,
                "{golden}: {copied} bytes copied, the cache holds {budget}"
            );
        }
    }
}

#[test]
fn requests_that_arrive_together_do_not_wait_for_state_that_will_not_fit() {
    // A waiting request would start after the first one's prompt, and never share a step with it.
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let metrics: Arc<Metrics> = Arc::default();
        let options = Options { prefill_chunk: 16, metrics: metrics.clone(), ..with_budget(1) };
        let engine = load(golden, options);
        let prompt = Random(5).tokens(2000);
        let asked = Request { speculation: Some(Speculate::Off), ..request(prompt, 1) };
        let running = [0, 1].map(|_| submit(&engine, asked.clone()));
        running.into_iter().for_each(|running| drop(answer(running)));
        let (rows, steps) = (metrics.step_rows.get(), metrics.prompt_steps.get());
        // Most steps have both rows, even if the second request came late.
        assert!(rows > steps + steps / 4, "{golden}: {rows} rows in {steps} steps");
    }
}

/// Seconds per schedule and budget.
#[test]
#[ignore = "measures time"]
fn schedule_time_with_a_small_budget_is_measured() {
    for (golden, length) in [("qwen3-a", 1500), ("merlin", 3000)] {
        for budget in [0, 100_000, 1_000_000, 4_000_000, 1 << 30] {
            let metrics: Arc<Metrics> = Arc::default();
            let engine = load(golden, Options { metrics: metrics.clone(), ..with_budget(budget) });
            let mut random = Random(3);
            let head = random.tokens(length);
            let started = Instant::now();
            for _ in 0..2 {
                let with = |tail: Vec<u32>| Request {
                    speculation: Some(Speculate::Off),
                    ..request([&head[..], &tail].concat(), 40)
                };
                let running: Vec<_> = (0..6).map(|i| submit(&engine, with(random.tokens(10 + i)))).collect();
                running.into_iter().for_each(|running| drop(answer(running)));
            }
            let seconds = started.elapsed().as_secs_f64();
            println!(
                "{golden} budget {budget}: {seconds:.2} s, {} prompt steps, {} plain, {} rows, {} tokens, {} bytes copied",
                metrics.prompt_steps.get(),
                metrics.plain_steps.get(),
                metrics.step_rows.get(),
                metrics.step_tokens.get(),
                engine.cache_stats().expect("runs").copied_bytes,
            );
        }
    }
}
