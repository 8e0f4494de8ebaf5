//! Whole answers on an NVIDIA GPU, or on an emulated one, against the CPU's. A binary of its own:
//! the device is that of the process.

#[path = "../../nn/tests/cuda/emulation.rs"]
mod emulation;

use std::{num::NonZeroUsize, path::Path, sync::mpsc};

use lanner_engine::*;

fn merlin(device: Device, prefill_chunk: usize, speculate: Speculate) -> Engine {
    let merlin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
    let options = Options {
        device: Some(device),
        prefill_chunk,
        max_batch: 4,
        speculate,
        threads: NonZeroUsize::new(2),
        ..Options::default()
    };
    start(Checkpoint::Folder(merlin), options, |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// Tokens of requests that run together.
fn answers(engine: &Engine, prompts: &[Vec<u32>], tokens: usize) -> Vec<Vec<u32>> {
    let submitted: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let temperature = if i % 2 == 0 { 0.0 } else { 0.9 };
            let sampling = Sampling { temperature, seed: 11 + i as u64, ..Sampling::default() };
            let request = Request { ignore_eos: true, sampling, ..Request::new(prompt.clone(), tokens) };
            let (sender, events) = mpsc::channel();
            let handle = engine.submit(request, move |event| drop(sender.send(event))).expect("valid");
            (handle, events)
        })
        .collect();
    let read = |(_handle, events): (RequestHandle, mpsc::Receiver<Event>)| {
        let token = |event| match event {
            Event::Token { id, .. } => Some(id),
            Event::Failed(error) => panic!("{error}"),
            _ => None,
        };
        events.into_iter().filter_map(token).collect()
    };
    submitted.into_iter().map(read).collect()
}

#[test]
fn merlin_on_the_gpu_gives_the_tokens_of_the_cpu() {
    let on_gpu = std::env::var_os("LANNER_GPU").is_some();
    match emulation::build() {
        Ok(None) => {}
        Ok(Some(folder)) => set_kernel_options(KernelOptions {
            driver: Some(folder.join("libcuda.so.1")),
            nvrtc_folders: vec![folder],
            cache: None,
        }),
        Err(why) => return eprintln!("skipped: {why}"),
    }
    let length = |short: usize, long: usize| if on_gpu { long } else { short };
    let prompt =
        |i: u32, n: usize| -> Vec<u32> { (0..n as u32).map(|t| 300 + (t * 37 + i * 101) % 4000).collect() };
    let prompts = [prompt(0, length(9, 700)), prompt(1, length(20, 90)), prompt(2, length(3, 33))];
    let tokens = length(6, 200);
    let expected = answers(&merlin(Device::Cpu, 64, Speculate::Off), &prompts, tokens);
    let check = |what: &str, chunk: usize, speculate: Speculate, count: usize| {
        let got = answers(&merlin(Device::Gpu, chunk, speculate), &prompts[..count], tokens);
        assert_eq!(got, expected[..count], "{what}");
    };
    check("together", 64, Speculate::Off, length(2, 3));
    if on_gpu {
        check("in one piece", 1024, Speculate::Off, 3);
        check("in small chunks", 7, Speculate::Off, 3);
        check("with drafts", 64, Speculate::Auto, 3);
        let head = Speculate::Fixed { drafter: "mtp".into(), depth: Some(3) };
        check("with the head's drafts", 64, head, 3);
    }
}
