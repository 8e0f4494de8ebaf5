//! Sampling: from logits to a token, as a pure function of the logits, the tokens so far, the
//! parameters and the position. Knows nothing of sequences and steps.
//!
//! A sampled token is `argmax(logits / temperature + gumbel(seed, position))` after the filters,
//! which draws from the softmax (Gumbel-max trick). Noise is keyed by token id: the same seed and
//! position give the same noise, whatever the other parameters are.

mod cpu;
mod device;
mod history;
pub(crate) mod logprobs;
mod mlx_ops;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use kernels::{PastToken, SampleError};
use mlx::Array;

use self::history::TokenHistory;
use crate::api::{Sampling, TokenSet};

/// Sampled tokens on the device, each with a fault code.
#[derive(Clone)]
pub(crate) struct SampleOutput {
    /// Uint32 `[n]`, each below the vocabulary's size, whatever the logits were.
    pub tokens: Array,
    /// Float32 `[n]`; [`fault_of`] decodes them.
    pub faults: Array,
}

/// Fault codes of rows, as they travel in a float32 array.
const FAULTS: [(f32, Option<SampleError>); 3] =
    [(0.0, None), (1.0, Some(SampleError::NonFinite)), (2.0, Some(SampleError::NoCandidate))];

/// Why a row with this fault code has no token; `None` if it has one.
pub(crate) fn fault_of(code: f32) -> Option<SampleError> {
    let known = FAULTS.iter().find(|(number, _)| *number == code);
    known.map_or(Some(SampleError::NonFinite), |(_, fault)| *fault)
}

fn code_of(fault: Option<SampleError>) -> f32 {
    FAULTS.iter().find(|(_, known)| *known == fault).map_or(f32::NAN, |(number, _)| *number)
}

/// One sequence's sampler: its parameters, and the token history that penalties need.
pub(crate) struct Sampler {
    sampling: Arc<Sampling>,
    bias: Arc<[(u32, f32)]>,
    /// Only with penalties.
    history: Option<TokenHistory>,
    /// Sampled after the history and not read back yet, uint32 `[1]` each. Only with penalties.
    pending: Vec<Array>,
}

impl Sampler {
    /// `prompt` and `generated` are the tokens before the first one to be sampled. Those outside
    /// the vocabulary are ignored: a draft model may have a smaller one.
    pub(crate) fn new(sampling: &Sampling, vocab_size: usize, prompt: &[u32], generated: &[u32]) -> Sampler {
        let repeats = sampling.repetition_penalty != 1.0;
        let penalised = repeats || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        // Only the repetition penalty looks at the prompt.
        let prompt = if repeats { prompt } else { &[] };
        let known =
            |tokens: &'_ [u32]| tokens.iter().copied().filter(|&id| (id as usize) < vocab_size).collect();
        Sampler {
            bias: sampling.logit_bias.iter().map(|(id, value)| (*id, *value)).collect(),
            history: penalised.then(|| TokenHistory::new(known(prompt), known(generated))),
            pending: vec![],
            sampling: Arc::new(sampling.clone()),
        }
    }

    /// Appends to the history a generated token that was read back.
    pub(crate) fn push(&mut self, token: u32) {
        if let Some(history) = &mut self.history {
            history.push(token);
            self.pending.drain(..self.pending.len().min(1));
        }
    }

    /// The draws of `1 + draft` tokens, the first at `position` of prompt plus output, each with
    /// the tokens after its history that were not read back yet.
    fn draws(&self, position: usize, draft: &[u32], allowed: &[TokenSet]) -> Vec<(Draw, Vec<Array>)> {
        let draw = |row: usize| Draw {
            sampling: self.sampling.clone(),
            bias: self.bias.clone(),
            allowed: allowed.get(row).filter(|set| set.words().is_some()).cloned(),
            history: self.history.as_ref().map(|history| history.tokens.clone()),
            draft: if self.history.is_some() { draft[..row].to_vec() } else { vec![] },
            position: (position + row) as u64,
        };
        (0..=draft.len()).map(|row| (draw(row), self.pending.clone())).collect()
    }

    /// Records a token, uint32 `[1]`, that was sampled and is read back later.
    fn await_token(&mut self, token: &Array) {
        if self.history.is_some() {
            self.pending.push(token.clone());
        }
    }
}

/// Everything one token is drawn with, besides its logits.
struct Draw {
    sampling: Arc<Sampling>,
    bias: Arc<[(u32, f32)]>,
    allowed: Option<TokenSet>,
    /// Distinct tokens of prompt and output. Only with penalties.
    history: Option<Arc<Vec<PastToken>>>,
    /// Drafted tokens after the history. Only with penalties.
    draft: Vec<u32>,
    position: u64,
}

impl Draw {
    /// Whether the likeliest token is drawn, with no changed logit.
    fn is_argmax(&self) -> bool {
        self.sampling.temperature == 0.0
            && self.bias.is_empty()
            && self.allowed.is_none()
            && self.history.is_none()
    }
}

/// One sequence's rows of a step that samples.
pub(crate) struct SampleRow<'a> {
    pub sampler: &'a mut Sampler,
    /// Position of the first token in prompt plus output.
    pub position: usize,
    pub draft: &'a [u32],
    /// The tokens that may be chosen, for each sampled token; empty means all.
    pub allowed: &'a [TokenSet],
}

/// Samples `1 + draft` tokens for each row, in order, from float32 logits `[n, vocab_size]`. Each
/// is the token that would be sampled if the draft's tokens before it were the output.
///
/// The caller [pushes](Sampler::push) each token once it was read back and accepted.
pub(crate) fn sample(logits: &Array, rows: Vec<SampleRow>) -> SampleOutput {
    let draws = rows.iter().flat_map(|row| row.sampler.draws(row.position, row.draft, row.allowed));
    let sampled = sample_draws(logits, draws.collect());
    let mut start = 0;
    for row in rows {
        // A step with a draft is read back before the next one is built.
        if row.draft.is_empty() && row.sampler.history.is_some() {
            row.sampler.await_token(&sampled.tokens.slice(0, start, start + 1));
        }
        start += 1 + row.draft.len() as i32;
    }
    sampled
}

fn sample_draws(logits: &Array, draws: Vec<(Draw, Vec<Array>)>) -> SampleOutput {
    assert_eq!(logits.dim(0) as usize, draws.len(), "a draw for each row of logits");
    if mlx::on_gpu() {
        return mlx_ops::sample(logits, &draws);
    }
    device::sample(logits, &draws).unwrap_or_else(|| cpu::sample(logits, draws))
}

/// A token, uint32 `[n]`, for each row of float32 logits `[n, vocab_size]`: the ones that these
/// samplers would draw at these consecutive positions, sampler by sampler.
pub(crate) fn guess<'a>(
    logits: &Array,
    samplers: impl IntoIterator<Item = (&'a mut Sampler, Range<usize>)>,
) -> Array {
    let mut samplers: Vec<(&mut Sampler, Range<usize>)> = samplers.into_iter().collect();
    if samplers.iter().all(|(sampler, _)| sampler.history.is_none()) {
        let draws = samplers.iter().flat_map(|(sampler, positions)| {
            positions.clone().flat_map(|position| sampler.draws(position, &[], &[]))
        });
        return sample_draws(logits, draws.collect()).tokens;
    }
    // A penalty needs the tokens before.
    let mut tokens = vec![];
    for (sampler, positions) in &mut samplers {
        for position in positions {
            let row = tokens.len() as i32;
            let draws = sampler.draws(position, &[], &[]);
            let token = sample_draws(&logits.slice(0, row, row + 1), draws).tokens;
            sampler.await_token(&token);
            tokens.push(token);
        }
    }
    Array::concatenate(&tokens, 0)
}

/// The softmax probabilities, float32 `[n]`, of `tokens` `[n]` under float32 logits `[n,
/// vocab_size]`.
pub(crate) fn probabilities(logits: &Array, tokens: &Array) -> Array {
    if mlx::on_gpu() { mlx_ops::probabilities(logits, tokens) } else { cpu::probabilities(logits, tokens) }
}

/// The logarithms, float32 `[n]`, of the sums of `exp(logit)` of each row of float32 logits `[n,
/// vocab_size]`.
fn log_sum_exp(logits: &Array) -> Array {
    if mlx::on_gpu() { logits.logsumexp(-1) } else { cpu::log_sum_exp(logits) }
}
