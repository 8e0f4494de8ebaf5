//! Memory of the prefix cache equals its own count. A separate binary: memory is measured per
//! process.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

#[path = "it/support/checkpoint.rs"]
mod checkpoint;

use std::sync::mpsc;

use lanner_engine::*;

fn finish(engine: &Engine, request: Request) {
    let (sender, events) = mpsc::channel();
    let _handle = engine.submit(request, move |event| drop(sender.send(event))).expect("valid");
    assert!(matches!(events.into_iter().last(), Some(Event::Finished { .. })));
}

/// Includes latents, which MLX tends to share instead of copying, and a hybrid with snapshots.
#[test]
fn memory_of_stored_state_equals_counted_bytes() {
    for golden in ["deepseek_v3-a", "qwen3_5-text-sharded", "gemma3_text-a", "qwen3-a"] {
        let folder = checkpoint::folder(golden);
        let budget = 6_000_000;
        let options = Options { device: Some(Device::Cpu), prefix_cache_bytes: budget, ..Options::default() };
        let engine = start(Checkpoint::Folder(folder.path().into()), options, |_| {}).expect("loads");
        let ask = |seed: u32, tokens: u32| {
            let prompt: Vec<u32> = (0..tokens).map(|i| 3 + (i / 100 * seed + i) % 240).collect();
            let middle = tokens as usize / 2;
            finish(
                &engine,
                Request { cache_breakpoints: vec![middle], ignore_eos: true, ..Request::new(prompt, 3) },
            );
        };
        // Allocates lazily created tables.
        ask(1, 900);
        engine.clear_cache().expect("runs");
        let before = mlx::active_memory();
        let mut most = 0;
        for seed in 1..30 {
            ask(seed, 400 + 40 * (seed % 20));
            let counted = engine.cache_stats().expect("runs").bytes;
            let grown = mlx::active_memory().saturating_sub(before);
            assert!(counted <= budget);
            // The allocator rounds small arrays up to whole pages.
            assert!(
                grown <= counted + counted / 8 + 200_000,
                "{golden}: {grown} bytes for {counted} counted"
            );
            most = most.max(counted);
        }
        assert!(most > budget / 3, "{golden}: {most} bytes are too few for this test");
        engine.clear_cache().expect("runs");
        engine.cache_stats().expect("runs");
        let left = mlx::active_memory().saturating_sub(before);
        assert!(left <= 200_000, "{golden}: {left} bytes were not freed");
    }
}
