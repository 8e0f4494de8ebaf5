//! What the prefix cache holds is what it says it holds. A test binary of its own: memory is the process's.

#[path = "it/support/checkpoint.rs"]
mod checkpoint;

use std::sync::mpsc;

use engine::*;

fn finish(engine: &Engine, request: Request) {
    let (sender, events) = mpsc::channel();
    let _ticket = engine.submit(request, move |event| drop(sender.send(event))).expect("valid");
    assert!(matches!(events.into_iter().last(), Some(Event::Finished { .. })));
}

/// Latents are what MLX would rather share than copy; the hybrid has checkpoints too.
#[test]
fn stored_state_takes_the_bytes_that_are_counted_and_pins_nothing_else() {
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
        // Tables that are made when first needed.
        ask(1, 900);
        engine.clear_cache().expect("runs");
        let before = mlx::active_memory();
        let mut most = 0;
        for seed in 1..30 {
            ask(seed, 400 + 40 * (seed % 20));
            let held = engine.cache_stats().expect("runs").bytes;
            let grown = mlx::active_memory().saturating_sub(before);
            assert!(held <= budget);
            // Small arrays are rounded up to whole pages by the allocator.
            assert!(
                grown <= held + held / 8 + 200_000,
                "{golden}: {grown} bytes for {held} that are counted"
            );
            most = most.max(held);
        }
        assert!(most > budget / 3, "{golden}: {most} bytes are enough to tell");
        engine.clear_cache().expect("runs");
        engine.cache_stats().expect("runs");
        let left = mlx::active_memory().saturating_sub(before);
        assert!(left <= 200_000, "{golden}: {left} bytes are left behind");
    }
}
