//! Prefix caches that shrink because the system is short of memory: answers stay the same.

use std::{
    thread,
    time::{Duration, Instant},
};

use lanner_engine::*;

use crate::support::{
    disk_model::{DiskModel, MODELS},
    requests::{Answer, Random, answer, request, submit},
};

fn options() -> Options {
    Options { snapshot_interval: 100, speculate: Speculate::Off, ..Options::default() }
}

/// Prompts that share their beginnings.
fn prompts() -> Vec<Vec<u32>> {
    let shared = Random(3).tokens(400);
    (0..6).map(|i| [&shared[..], &Random(20 + i).tokens(60)].concat()).collect()
}

fn ask(engine: &Engine, prompt: &[u32]) -> Answer {
    answer(submit(engine, request(prompt.to_vec(), 12)))
}

/// Waits until the caches hold at most this many bytes together: engines learn of it in their next
/// tick.
fn wait_for(most: usize, engines: &[&Engine]) {
    let started = Instant::now();
    loop {
        let bytes: usize = engines.iter().map(|engine| engine.cache_stats().unwrap().bytes).sum();
        if bytes <= most {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{bytes} bytes, where {most} are allowed");
        engines[0].metrics().account.wake_engines();
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn answers_stay_the_same_while_caches_shrink_and_grow() {
    for golden in MODELS {
        let model = DiskModel::new(golden);
        let cold = model.start(Options { prefix_cache_bytes: 0, ..options() });
        let expected: Vec<_> = prompts().iter().map(|prompt| ask(&cold, prompt).tokens).collect();
        let engine = model.start(options());
        let account = engine.metrics().account.clone();
        let bytes = || engine.cache_stats().unwrap().bytes;
        let all = || -> Vec<_> { prompts().iter().map(|prompt| ask(&engine, prompt).tokens).collect() };
        assert_eq!(all(), expected, "{golden}");
        let full = bytes();
        assert!(full > 0, "{golden}");
        for most in [full / 2, full / 5, 0] {
            account.press_caches(Some(most), true);
            wait_for(most, &[&engine]);
            // In a batch, while the cache is pressed again and again.
            let running: Vec<_> =
                prompts().into_iter().map(|prompt| submit(&engine, request(prompt, 12))).collect();
            account.press_caches(Some(most / 2), true);
            account.press_caches(Some(most), true);
            let answers: Vec<_> = running.into_iter().map(|running| answer(running).tokens).collect();
            assert_eq!(answers, expected, "{golden} within {most}");
            wait_for(most, &[&engine]);
        }
        account.press_caches(None, false);
        assert_eq!(all(), expected, "{golden}");
        assert!(bytes() >= full / 2, "{golden}: it grows back");
        let warm = ask(&engine, &prompts()[5]);
        assert_eq!(warm.tokens, expected[5], "{golden}");
        assert!(warm.usage.cache.reused > 300, "{golden}: {:?}", warm.usage.cache);
    }
}

#[test]
fn pressed_caches_of_two_engines_share_what_is_left() {
    let model = DiskModel::new("qwen3-a");
    let first = model.start(options());
    let shared = Options { metrics: first.metrics().clone(), ..options() };
    let second = model.start(shared);
    for prompt in prompts() {
        ask(&first, &prompt);
        ask(&second, &prompt);
    }
    let bytes = |engine: &Engine| engine.cache_stats().unwrap().bytes;
    let most = bytes(&first).min(bytes(&second)) / 2;
    first.metrics().account.press_caches(Some(most), true);
    wait_for(most, &[&first, &second]);
}
