//! Sampling with MLX's own operations, row by row: on MLX's GPUs, until they have a kernel.

use kernels::{PastToken, SampleError};
use mlx::{Array, Dtype, OutputSpec};

use super::{Draw, SampleOutput, code_of};
use crate::api::{Sampling, TokenSet};

pub(super) fn sample(logits: &Array, draws: &[(Draw, Vec<Array>)]) -> SampleOutput {
    if draws.iter().all(|(draw, _)| draw.is_argmax()) {
        return argmax(logits);
    }
    let row = |(i, (draw, pending)): (i32, &(Draw, Vec<Array>))| {
        draw.sample(&logits.slice(0, i, i + 1).reshape(&[-1]), pending)
    };
    let (tokens, faults): (Vec<Array>, Vec<Array>) = (0..).zip(draws).map(row).unzip();
    SampleOutput { tokens: Array::concatenate(&tokens, 0), faults: Array::concatenate(&faults, 0) }
}

fn argmax(logits: &Array) -> SampleOutput {
    let faults = [None, Some(SampleError::NonFinite)];
    let [none, not_finite] = faults.map(|fault| Array::scalar(code_of(fault), Dtype::Float32));
    let faults = is_finite(&logits.sum(-1, false)).select(&none, &not_finite);
    SampleOutput { tokens: logits.argmax(-1), faults }
}

/// Whether each number of float32 `x` is finite, as bool: infinities and NaN times 0 are NaN.
fn is_finite(x: &Array) -> Array {
    let zero = Array::scalar(0.0, Dtype::Float32);
    (x * &zero).greater_equal(&zero)
}

impl Draw {
    /// Token and fault code, `[1]` each, from logits `[vocab_size]`.
    fn sample(&self, logits: &Array, pending: &[Array]) -> (Array, Array) {
        let minus_infinity = Array::scalar(f32::NEG_INFINITY, Dtype::Float32);
        let mut adjusted = self.adjusted(logits, pending);
        // Tokens whose logits bias or penalties made infinite cannot be chosen.
        adjusted = is_finite(&adjusted).select(&adjusted, &minus_infinity);
        let allowed = self.allowed.as_ref().and_then(|allowed: &TokenSet| allowed.array(adjusted.dim(0)));
        if let Some(allowed) = allowed {
            adjusted = allowed.select(&adjusted, &minus_infinity);
        }
        let token = match self.sampling.temperature {
            0.0 => adjusted.argmax(-1).reshape(&[1]),
            // The largest becomes 0 first: dividing by a tiny temperature must not make several of
            // them infinite.
            temperature => self.filtered_draw(&((&adjusted - adjusted.max(-1, true)) / temperature)),
        };
        let last = Array::from_slice(&[logits.dim(0) as u32 - 1], &[1]);
        let token = token.minimum(&last);
        let faults = [None, Some(SampleError::NoCandidate), Some(SampleError::NonFinite)];
        let [none, nothing_left, not_finite] =
            faults.map(|fault| Array::scalar(code_of(fault), Dtype::Float32));
        let faults = is_finite(&adjusted.take(&token, 0)).select(&none, &nothing_left);
        let faults = is_finite(&logits.sum(-1, true)).select(&faults, &not_finite);
        (token, faults)
    }

    /// Logits after bias and penalties.
    fn adjusted(&self, logits: &Array, pending: &[Array]) -> Array {
        let mut logits = logits.clone();
        if !self.bias.is_empty() {
            let (ids, values): (Vec<u32>, Vec<f32>) = self.bias.iter().copied().unzip();
            let n = ids.len() as i32;
            logits = logits.scatter_add(&Array::from_slice(&ids, &[n]), &Array::from_slice(&values, &[n]), 0);
        }
        match &self.history {
            Some(history) => self.penalised(&logits, history, pending),
            None => logits,
        }
    }

    fn penalised(&self, logits: &Array, tokens: &[PastToken], pending: &[Array]) -> Array {
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).chain(self.draft.iter().copied()).collect();
        let counts: Vec<f32> = (tokens.iter().map(|token| token.generated as f32))
            .chain(std::iter::repeat_n(1.0, self.draft.len() + pending.len()))
            .collect();
        if counts.is_empty() {
            return logits.clone();
        }
        let known = Array::from_slice(&ids, &[ids.len() as i32]);
        let ids = Array::concatenate(std::iter::once(&known).chain(pending), 0);
        let n = counts.len() as i32;
        let zero = Array::scalar(0.0, Dtype::Float32);
        let zeros = || Array::full(logits.shape(), 0.0, Dtype::Float32);
        let mut logits = logits.clone();
        let penalty = self.sampling.repetition_penalty;
        if penalty != 1.0 {
            let in_history = zeros().put_along_axis(&ids, &Array::full(&[n], 1.0, Dtype::Float32), 0);
            let penalised = logits.greater(&zero).select(&(&logits / penalty), &(&logits * penalty));
            logits = in_history.greater(&zero).select(&penalised, &logits);
        }
        let counts = zeros().scatter_add(&ids, &Array::from_slice(&counts, &[n]), 0);
        let present = counts.greater(&zero).astype(Dtype::Float32);
        logits - counts * self.sampling.frequency_penalty - present * self.sampling.presence_penalty
    }

    /// A draw from scaled logits after `min_p`, `top_k` and `top_p`.
    fn filtered_draw(&self, logits: &Array) -> Array {
        let Sampling { top_k, top_p, min_p, seed, .. } = *self.sampling;
        let vocab_size = logits.dim(0);
        let noise = noise(vocab_size, seed, self.position);
        let minus_infinity = Array::scalar(f32::NEG_INFINITY, Dtype::Float32);
        let mut logits = logits.clone();
        if min_p > 0.0 {
            let floor = logits.max(-1, true) + min_p.ln();
            logits = logits.greater_equal(&floor).select(&logits, &minus_infinity);
        }
        let top_k = if top_k == 0 { vocab_size } else { vocab_size.min(top_k.min(i32::MAX as usize) as i32) };
        if top_k == vocab_size && top_p >= 1.0 {
            return (logits + noise).argmax(-1).reshape(&[1]);
        }
        // Likeliest first; among equals, the lower id.
        let order = (-&logits).argsort(-1).slice(0, 0, top_k);
        let mut sorted = logits.take(&order, 0);
        if top_p < 1.0 {
            let probabilities = sorted.softmax(-1);
            let before = probabilities.cumsum(-1) - &probabilities;
            let kept = before.less(&Array::scalar(top_p, Dtype::Float32));
            sorted = kept.select(&sorted, &minus_infinity);
        }
        let choice = (sorted + noise.take(&order, 0)).argmax(-1).reshape(&[1]);
        order.take(&choice, 0)
    }
}

pub(super) fn probabilities(logits: &Array, tokens: &Array) -> Array {
    let n = logits.dim(0);
    let own = logits.take_along_axis(&tokens.reshape(&[n, 1]), 1).reshape(&[n]);
    (own - logits.logsumexp(-1).reshape(&[n])).exp()
}

/// Each token's noise at `position`, float32 `[vocab_size]`: on the CPU the kernel's, on a GPU
/// MLX's.
fn noise(vocab_size: i32, seed: u64, position: u64) -> Array {
    if mlx::on_gpu() {
        return Array::gumbel(&[vocab_size], mix(seed, position));
    }
    let spec = OutputSpec { shape: vec![vocab_size], dtype: Dtype::Float32 };
    let [noise] = mlx::apply("noise", &[], [spec], move |_, outputs| {
        kernels::fill_gumbel(seed, position, outputs[0].values());
    });
    noise
}

/// A seed for one position's noise (the finaliser of SplitMix64).
fn mix(seed: u64, position: u64) -> u64 {
    let mut z = seed.wrapping_add((position + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
