//! Runs one workload on the engine and measures it from the arrival times of its tokens.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use engine::{
    Engine, Event, Request, RequestError, Sampling, Speculate,
    profile::{self, Counters, KernelTime},
};

/// `batch` concurrent requests, each with `prompt` random prompt tokens and `generate` new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    pub prompt: usize,
    pub generate: usize,
    pub batch: usize,
    pub sampling: SamplingKind,
}

/// How a workload's tokens are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SamplingKind {
    /// The likeliest token.
    Greedy,
    /// The likeliest token after presence and frequency penalties.
    Penalty,
    /// The likeliest token, and the log-probabilities of the 20 likeliest.
    TopLogprobs,
    /// Temperature 0.8 with `top_k` 40 and `top_p` 0.95.
    Random,
}

impl SamplingKind {
    /// The name of the flag's value.
    pub fn name(self) -> &'static str {
        match self {
            SamplingKind::Greedy => "greedy",
            SamplingKind::Penalty => "penalty",
            SamplingKind::TopLogprobs => "top-logprobs",
            SamplingKind::Random => "random",
        }
    }

    fn request(self, prompt: Vec<u32>, max_tokens: usize, seed: u64) -> Request {
        // Plain decoding, whatever the engine's default is.
        let speculation = Some(Speculate::Off);
        let plain = Request { ignore_eos: true, speculation, ..Request::new(prompt, max_tokens) };
        let off = Sampling::default();
        match self {
            SamplingKind::Greedy => plain,
            SamplingKind::Penalty => Request {
                sampling: Sampling { presence_penalty: 0.5, frequency_penalty: 0.5, ..off },
                ..plain
            },
            SamplingKind::TopLogprobs => Request { logprobs: Some(20), ..plain },
            SamplingKind::Random => Request {
                sampling: Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed, ..off },
                ..plain
            },
        }
    }
}

/// Measurements of one run of a workload.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Seconds from submitting to the first token, of each request.
    pub ttft: Vec<f64>,
    /// Prompt tokens of all requests per second, until the last request has its first token.
    pub prefill: f64,
    /// Tokens of all requests per second after that; `None`: no tokens.
    pub decode: Option<f64>,
    /// Milliseconds between two tokens of a request.
    pub gaps: Vec<f64>,
    /// `None`: too few tokens.
    pub per_token: Option<PerToken>,
    /// Time of each kernel.
    pub kernels: Vec<Kernel>,
}

/// Milliseconds of one kernel per token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kernel {
    pub name: &'static str,
    pub prompt: f64,
    /// `None`: too few tokens.
    pub generated: Option<f64>,
}

/// Mean cost of a generated token; the cost of a step is divided by its tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerToken {
    pub nodes: f64,
    /// `None` where Lanner's kernels do not run: on a GPU that is not NVIDIA's.
    pub kernels: Option<f64>,
    /// Milliseconds in Lanner's kernels; `None` on a GPU, unless each is timed.
    pub kernel_ms: Option<f64>,
    /// Milliseconds of everything else; on a GPU those in which the host does not wait for it.
    pub host_ms: Option<f64>,
}

/// The arrival of a token.
struct Arrival {
    request: usize,
    at: Duration,
    counters: Counters,
    kernels: Vec<KernelTime>,
}

/// Runs a workload, all requests submitted together. Different seeds have different prompts.
///
/// # Errors
/// The engine rejects or fails a request.
pub(crate) fn measure(engine: &Engine, workload: Workload, seed: u64) -> Result<Sample, RequestError> {
    let vocab_size = engine.info().vocab_size;
    let prompts: Vec<Vec<u32>> =
        (0..workload.batch).map(|i| random_ids(seed << 16 | i as u64, workload.prompt, vocab_size)).collect();
    let (sender, arrivals) = mpsc::channel();
    let before = profile::kernels();
    let started = Instant::now();
    let mut handles = vec![];
    for (request, prompt) in prompts.into_iter().enumerate() {
        let sender = sender.clone();
        let sink = move |event| {
            let arrived = match event {
                Event::Token { .. } => {
                    let (at, counters) = (started.elapsed(), profile::read());
                    Ok(Arrival { request, at, counters, kernels: profile::kernels() })
                }
                Event::Failed(error) => Err(error),
                _ => return,
            };
            // A closed channel means that another request has failed.
            drop(sender.send(arrived));
        };
        let request = workload.sampling.request(prompt, workload.generate, seed);
        handles.push(engine.submit(request, sink)?);
    }
    drop(sender);
    let arrivals = arrivals.into_iter().collect::<Result<Vec<_>, _>>()?;
    sample(workload, &before, &arrivals).ok_or(RequestError::EngineStopped)
}

/// Random token ids (SplitMix64).
pub(crate) fn random_ids(seed: u64, count: usize, vocab_size: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % vocab_size as u64) as u32
    };
    (0..count).map(|_| next()).collect()
}

/// `None` if tokens are missing.
fn sample(workload: Workload, before: &[KernelTime], arrivals: &[Arrival]) -> Option<Sample> {
    let Workload { prompt, generate, batch, .. } = workload;
    // Indices of each request's tokens among all.
    let of = |request| (0..arrivals.len()).filter(move |&i| arrivals[i].request == request);
    let indices: Vec<Vec<usize>> = (0..batch).map(|request| of(request).collect()).collect();
    if indices.iter().any(|indices| indices.len() != generate) {
        return None;
    }
    let first = indices.iter().map(|indices| indices[0]).max()?;
    let last = arrivals.len() - 1;
    let at = |i: usize| arrivals[i].at.as_secs_f64();
    let decode = (last > first).then(|| (last - first) as f64 / (at(last) - at(first)));
    let gaps =
        indices.iter().flat_map(|indices| indices.windows(2)).map(|pair| 1e3 * (at(pair[1]) - at(pair[0])));
    // When a token arrives, the next step is built already, except after the last token: count
    // until the one before.
    let end = indices.iter().filter_map(|indices| indices.len().checked_sub(2).map(|i| indices[i])).max();
    let end = end.filter(|&end| end > first);
    let per_token = end.map(|end| per_token(&arrivals[first], &arrivals[end], end - first));
    let (prompts, prefilled) = (batch * prompt, &arrivals[first].kernels);
    let kernels = arrivals[last].kernels.iter().map(|&KernelTime { name, .. }| Kernel {
        name,
        prompt: ms_between(name, before, prefilled) / prompts as f64,
        generated: end.map(|end| ms_between(name, prefilled, &arrivals[end].kernels) / (end - first) as f64),
    });
    Some(Sample {
        ttft: indices.iter().map(|indices| at(indices[0])).collect(),
        prefill: (batch * prompt) as f64 / at(first),
        decode,
        gaps: gaps.collect(),
        per_token,
        kernels: kernels.collect(),
    })
}

/// Milliseconds that a kernel ran between two readings.
fn ms_between(name: &str, before: &[KernelTime], after: &[KernelTime]) -> f64 {
    let time = |kernels: &[KernelTime]| {
        let kernel = kernels.iter().find(|kernel| kernel.name == name);
        kernel.map_or(0.0, |kernel| 1e3 * kernel.time.as_secs_f64())
    };
    time(after) - time(before)
}

fn per_token(from: &Arrival, to: &Arrival, tokens: usize) -> PerToken {
    let counted = to.counters - from.counters;
    let each = |total: f64| total / tokens as f64;
    let ms = |time: Duration| each(time.as_secs_f64() * 1e3);
    let ran = counted.kernels > 0;
    // The GPU computes while the host works.
    let elsewhere = if counted.waited.is_zero() { counted.kernel_time } else { counted.waited };
    PerToken {
        nodes: each(counted.nodes as f64),
        kernels: ran.then(|| each(counted.kernels as f64)),
        kernel_ms: (!counted.kernel_time.is_zero()).then(|| ms(counted.kernel_time)),
        host_ms: ran.then(|| ms((to.at - from.at).saturating_sub(elsewhere))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token of `request` after `ms` milliseconds and `nodes` nodes; kernels took half of the
    /// time.
    fn arrival(request: usize, ms: u64, nodes: u64) -> Arrival {
        let at = Duration::from_millis(ms);
        let kernels = vec![KernelTime { name: "delta_net", runs: nodes / 2, time: at / 2 }];
        Arrival {
            request,
            at,
            counters: Counters { nodes, kernels: nodes / 2, kernel_time: at / 2, waited: Duration::ZERO },
            kernels,
        }
    }

    fn greedy(prompt: usize, generate: usize, batch: usize) -> Workload {
        Workload { prompt, generate, batch, sampling: SamplingKind::Greedy }
    }

    #[test]
    fn sample_of_one_request_splits_prefill_and_decode() {
        let arrivals = [arrival(0, 100, 60), arrival(0, 110, 80), arrival(0, 130, 100), arrival(0, 140, 100)];
        let found = sample(greedy(50, 4, 1), &[], &arrivals).unwrap();
        assert_eq!((&found.ttft[..], found.prefill), (&[0.1][..], 500.0));
        assert!((found.decode.unwrap() - 75.0).abs() < 1e-9, "three tokens in 40 ms");
        assert_eq!(found.gaps.iter().map(|gap| gap.round()).collect::<Vec<_>>(), [10.0, 20.0, 10.0]);
        let PerToken { nodes, kernels, kernel_ms, host_ms } = found.per_token.unwrap();
        assert_eq!((nodes, kernels, kernel_ms, host_ms), (20.0, Some(10.0), Some(7.5), Some(7.5)));
        let kernel = Kernel { name: "delta_net", prompt: 1.0, generated: Some(7.5) };
        assert_eq!(found.kernels, [kernel], "50 ms of 50 tokens, then half of each");
    }

    #[test]
    fn sample_on_a_gpu_counts_launches_and_the_time_without_waiting() {
        let arrivals = [100u64, 110, 130, 140].map(|ms| {
            let waited = Duration::from_millis(ms) * 4 / 5;
            let counters = Counters { nodes: 0, kernels: ms, kernel_time: Duration::ZERO, waited };
            Arrival { counters, ..arrival(0, ms, 0) }
        });
        let found = sample(greedy(50, 4, 1), &[], &arrivals).unwrap().per_token.unwrap();
        assert_eq!((found.kernels, found.kernel_ms, found.host_ms), (Some(15.0), None, Some(3.0)));
    }

    #[test]
    fn sample_of_a_batch_decodes_after_all_first_tokens() {
        let times = [(0, 100), (0, 110), (1, 120), (0, 130), (1, 130), (1, 140)];
        let arrivals: Vec<Arrival> =
            times.into_iter().map(|(request, ms)| arrival(request, ms, ms)).collect();
        let found = sample(greedy(60, 3, 2), &[], &arrivals).unwrap();
        assert_eq!((&found.ttft[..], found.prefill), (&[0.1, 0.12][..], 1000.0));
        assert!((found.decode.unwrap() - 150.0).abs() < 1e-9, "three tokens in 20 ms");
        assert_eq!(found.gaps.len(), 4);
        assert_eq!(found.per_token.unwrap().nodes, 5.0, "two tokens while ten nodes were built");
    }

    #[test]
    fn sample_of_one_token_has_no_decode_speed() {
        let found = sample(greedy(8, 1, 1), &[], &[arrival(0, 10, 5)]).unwrap();
        assert!(found.decode.is_none() && found.per_token.is_none() && found.gaps.is_empty());
        let two = [arrival(0, 10, 5), arrival(0, 20, 5)];
        let found = sample(greedy(8, 2, 1), &[], &two).unwrap();
        assert!(found.decode.is_some() && found.per_token.is_none());
        assert!(sample(greedy(8, 3, 1), &[], &two).is_none(), "a token is missing");
    }

    #[test]
    fn random_ids_differ_by_seed_and_stay_in_the_vocabulary() {
        let [a, b] = [1 << 16, 1 << 16 | 1].map(|seed| random_ids(seed, 1000, 300));
        assert_ne!(a, b);
        assert!(
            a.iter().all(|&id| id < 300) && a.iter().collect::<std::collections::BTreeSet<_>>().len() > 250
        );
    }
}
