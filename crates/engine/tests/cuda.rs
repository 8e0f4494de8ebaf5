//! Whole answers on an NVIDIA GPU, or on an emulated one, against the CPU's. A binary of its own:
//! the device is that of the process.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

#[path = "it/support/constraints.rs"]
#[allow(dead_code, reason = "its other constraint is for tests of the CPU")]
mod constraints;
#[path = "../../nn/tests/cuda/emulation.rs"]
mod emulation;
#[path = "it/support/requests.rs"]
mod requests;
#[path = "it/support/schedules.rs"]
mod schedules;

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lanner_engine::*;
use requests::{Random, Running, request, submit};

fn load(options: Options) -> Engine {
    let merlin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
    start(Checkpoint::Folder(merlin), options, |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

fn merlin(device: Device, prefill_chunk: usize, speculate: Speculate, metrics: &Arc<Metrics>) -> Engine {
    load(Options {
        device: Some(device),
        prefill_chunk,
        max_batch: 4,
        speculate,
        threads: NonZeroUsize::new(2),
        metrics: metrics.clone(),
        ..Options::default()
    })
}

/// An engine on all cores without a prefix cache.
fn cold_cpu() -> Engine {
    load(Options { device: Some(Device::Cpu), prefix_cache_bytes: 0, ..Options::default() })
}

fn is_gpu() -> bool {
    std::env::var_os("LANNER_GPU").is_some()
}

/// The device, for one test at a time; `None` if there is none.
fn device() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match emulation::build() {
        Ok(None) => {}
        Ok(Some(folder)) => set_kernel_options(KernelOptions {
            driver: Some(folder.join("libcuda.so.1")),
            nvrtc_folders: vec![folder],
            cache: None,
        }),
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    }
    Some(alone)
}

/// Requests, every second one sampled from all tokens.
fn plain(prompts: &[Vec<u32>], tokens: usize) -> Vec<Request> {
    let request = |(i, prompt): (usize, &Vec<u32>)| {
        let temperature = if i % 2 == 0 { 0.0 } else { 0.9 };
        let sampling = Sampling { temperature, seed: 11 + i as u64, ..Sampling::default() };
        Request { ignore_eos: true, sampling, ..Request::new(prompt.clone(), tokens) }
    };
    prompts.iter().enumerate().map(request).collect()
}

/// Requests with penalties, filters, log-probabilities and a constraint.
fn filtered(prompts: &[Vec<u32>], tokens: usize) -> Vec<Request> {
    let request = |request: Request| {
        let sampling = Sampling {
            top_k: 40,
            top_p: 0.9,
            min_p: 0.01,
            repetition_penalty: 1.1,
            presence_penalty: 0.5,
            ..request.sampling
        };
        Request { sampling, logprobs: Some(2), constraint: Some(Arc::new(Even)), ..request }
    };
    plain(prompts, tokens).into_iter().map(request).collect()
}

/// Requests sampled from the likeliest tokens.
fn likeliest(prompts: &[Vec<u32>], tokens: usize) -> Vec<Request> {
    let request = |request: Request| {
        let sampling = Sampling { temperature: 0.9, top_k: 20, top_p: 0.95, min_p: 0.01, ..request.sampling };
        Request { sampling, ..request }
    };
    plain(prompts, tokens).into_iter().map(request).collect()
}

/// Requests whose blocks of tokens are cut as thinking is. As there, a block may have all tokens of
/// the vocabulary but a few.
fn limited(prompts: &[Vec<u32>], tokens: usize) -> Vec<Request> {
    let request = |request: Request| Request { constraint: constraints::limited_to(1 << 16), ..request };
    plain(prompts, tokens).into_iter().map(request).collect()
}

/// Allows tokens with even ids.
#[derive(Debug)]
struct Even;

impl Constraint for Even {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Even)
    }
}

impl ConstraintState for Even {
    fn push(&mut self, token: u32) -> Result<bool, String> {
        Ok(token.is_multiple_of(2))
    }

    fn rewind(&mut self, _tokens: usize) -> Result<(), String> {
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        Ok(TokenSet::of(1 << 16, (0..1 << 15).map(|i| 2 * i)))
    }

    fn forced(&mut self, _max: usize) -> Result<Vec<u32>, String> {
        Ok(vec![])
    }
}

/// Tokens of requests that run together, with their log-probabilities as text.
fn answers(engine: &Engine, requests: &[Request]) -> Vec<Vec<(u32, String)>> {
    let submitted: Vec<Running> = requests.iter().map(|request| submit(engine, request.clone())).collect();
    let read = |Running { handle: _handle, events, .. }: Running| {
        let token = |event| match event {
            Event::Token { id, logprobs } => Some((id, format!("{logprobs:?}"))),
            Event::Failed(error) => panic!("{error}"),
            _ => None,
        };
        events.into_iter().filter_map(token).collect()
    };
    submitted.into_iter().map(read).collect()
}

#[test]
fn merlin_on_the_gpu_gives_the_answers_of_the_cpu() {
    let Some(_alone) = device() else { return };
    let on_gpu = is_gpu();
    let length = |short: usize, long: usize| if on_gpu { long } else { short };
    let prompt =
        |i: u32, n: usize| -> Vec<u32> { (0..n as u32).map(|t| 300 + (t * 37 + i * 101) % 4000).collect() };
    let prompts = [prompt(0, length(9, 700)), prompt(1, length(20, 90)), prompt(2, length(3, 33))];
    let tokens = length(6, 200);
    let count = length(2, 3);
    let prompts = &prompts[..count];
    let kinds = [
        plain(prompts, tokens),
        filtered(prompts, tokens),
        limited(prompts, 2 * tokens),
        likeliest(prompts, tokens),
    ];
    let cpu = merlin(Device::Cpu, 64, Speculate::Off, &Arc::default());
    let expected = kinds.each_ref().map(|requests| answers(&cpu, requests));
    assert!(expected[1].iter().flatten().all(|(id, _)| id % 2 == 0), "the constraint was ignored");
    drop(cpu);
    let check = |what: &str, chunk: usize, speculate: Speculate| {
        let metrics: Arc<Metrics> = Arc::default();
        let drafts = speculate != Speculate::Off;
        let gpu = merlin(Device::Gpu, chunk, speculate, &metrics);
        let mut queued = [0; 4];
        for ((requests, expected), queued) in kinds.iter().zip(&expected).zip(&mut queued) {
            let before = metrics.queued_steps.get();
            assert_eq!(&answers(&gpu, requests), expected, "{what}");
            *queued = metrics.queued_steps.get() - before;
        }
        // Penalties and log-probabilities are the CPU's work; a limit is mostly known ahead.
        let enough = tokens as u64 - 2;
        assert!(drafts || [0, 2, 3].iter().all(|&kind| queued[kind] >= enough), "{queued:?}");
        assert!(drafts || on_gpu || queued[1] == 0, "{queued:?}");
    };
    check("together", 64, Speculate::Off);
    if on_gpu {
        check("in one piece", 1024, Speculate::Off);
        check("in small chunks", 7, Speculate::Off);
        check("with drafts", 64, Speculate::Auto);
        check("with the head's drafts", 64, Speculate::Fixed { drafter: "mtp".into(), depth: Some(3) });
    }
}

/// LANNER_SCHEDULES; without it many on a GPU, and none on the emulated device, which is too slow.
fn schedules() -> u64 {
    let given = std::env::var("LANNER_SCHEDULES").ok().and_then(|n| n.parse().ok());
    given.unwrap_or(if is_gpu() { 300 } else { 0 })
}

#[test]
fn random_schedules_on_the_gpu_give_the_answers_of_a_cold_cpu() {
    let (mut reused, count) = (0, schedules());
    let Some(_alone) = device().filter(|_| count > 0) else {
        return eprintln!("skipped: LANNER_SCHEDULES sets the number of schedules on the emulated device");
    };
    let cold = cold_cpu();
    for seed in 0..count {
        let on_gpu = |options| load(Options { device: Some(Device::Gpu), ..options });
        reused += schedules::schedule("merlin", on_gpu, seed, &cold).reused_tokens;
    }
    println!("{count} schedules, {reused} tokens reused");
    assert!(count < 10 || reused > 1000, "{reused} tokens reused");
}

#[test]
fn state_from_the_disk_gives_the_gpu_the_answers_of_a_cold_cpu() {
    let Some(_alone) = device() else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = || {
        let disk_cache = DiskCache { folder: folder.path().into(), bytes: 1 << 30, bits: None };
        let (disk_cache, device) = (Some(disk_cache), Some(Device::Gpu));
        load(Options { device, disk_cache, snapshot_interval: 16, ..Options::default() })
    };
    let (long, tokens) = if is_gpu() { (700, 40) } else { (40, 3) };
    let prompt = Random(5).tokens(long);
    let ask =
        |engine: &Engine, prompt: &[u32]| requests::answer(submit(engine, request(prompt.to_vec(), tokens)));
    let first = ask(&disk(), &prompt);
    let further = [&prompt[..], &first.ids(), &[9, 8]].concat();
    let restored = ask(&disk(), &further);
    assert_eq!(restored.usage.cache.source, Some(CacheSource::Disk));
    let cold = cold_cpu();
    assert_eq!(first.tokens, ask(&cold, &prompt).tokens);
    assert_eq!(restored.tokens, ask(&cold, &further).tokens);
}
