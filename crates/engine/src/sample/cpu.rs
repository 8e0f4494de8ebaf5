//! Sampling on the CPU: one operation for all rows of a step, by the kernel in `kernels`.

use kernels::SampleError;
use mlx::{Array, Dtype, OutputSpec};

use super::{Draw, SampleOutput, code_of, history::extended};
use crate::api::{TokenSet, sampling::with_parameters};

/// Arithmetic per logit, in multiplications: sampling draws noise for it.
const WORK_PER_LOGIT: usize = 16;

pub(super) fn sample(logits: &Array, draws: Vec<(Draw, Vec<Array>)>) -> SampleOutput {
    let (rows, vocab_size) = (logits.dim(0), logits.dim(1) as usize);
    let (draws, pending): (Vec<Draw>, Vec<Vec<Array>>) = draws.into_iter().unzip();
    // Arrays enter a kernel as inputs; a draw's own are the ones from its offset on.
    let offsets: Vec<usize> = pending
        .iter()
        .scan(1, |next, own| {
            *next += own.len();
            Some(*next - own.len())
        })
        .collect();
    let counts: Vec<usize> = pending.iter().map(Vec::len).collect();
    let inputs: Vec<&Array> = std::iter::once(logits).chain(pending.iter().flatten()).collect();
    let specs = [Dtype::Uint32, Dtype::Float32].map(|dtype| OutputSpec { shape: vec![rows], dtype });
    let [tokens, faults] = mlx::apply("sample", &inputs, specs, move |inputs, outputs| {
        let logits: &[f32] = inputs[0].values();
        let mut sampled = vec![Ok(0); draws.len()];
        let pending: Vec<Vec<u32>> = offsets
            .iter()
            .zip(&counts)
            .map(|(&at, &n)| inputs[at..at + n].iter().map(|token| token.values::<u32>()[0]).collect())
            .collect();
        kernels::for_each_chunk(&mut sampled, 1, WORK_PER_LOGIT * logits.len(), |i, sampled| {
            sampled[0] = draws[i].token(&logits[i * vocab_size..][..vocab_size], &pending[i]);
        });
        let [tokens, faults] = outputs else { unreachable!("two outputs") };
        for (to, token) in tokens.values::<u32>().iter_mut().zip(&sampled) {
            *to = token.unwrap_or(0);
        }
        for (to, token) in faults.values::<f32>().iter_mut().zip(&sampled) {
            *to = code_of(token.err());
        }
    });
    SampleOutput { tokens, faults }
}

impl Draw {
    fn token(&self, logits: &[f32], pending: &[u32]) -> Result<u32, SampleError> {
        let generated = self.draft.iter().chain(pending).copied();
        let history = self.history.as_ref().map(|history| extended(history, generated));
        let sampling = with_parameters!(
            self.sampling,
            kernels::Sampling {
                allowed: self.allowed.as_ref().and_then(TokenSet::words),
                bias: &self.bias,
                past: history.as_deref().unwrap_or(&[]),
            }
        );
        kernels::sample(logits, &sampling, self.position)
    }
}

pub(super) fn probabilities(logits: &Array, tokens: &Array) -> Array {
    let (n, vocab_size) = (logits.dim(0), logits.dim(1) as usize);
    let spec = OutputSpec { shape: vec![n], dtype: Dtype::Float32 };
    let [likely] = mlx::apply("probabilities", &[logits, tokens], [spec], move |inputs, outputs| {
        let rows = inputs[0].values::<f32>().chunks_exact(vocab_size).zip(inputs[1].values::<u32>());
        for (to, (logits, id)) in outputs[0].values::<f32>().iter_mut().zip(rows) {
            *to = kernels::probability(logits, *id);
        }
    });
    likely
}

pub(super) fn log_sum_exp(logits: &Array) -> Array {
    let (n, vocab_size) = (logits.dim(0), logits.dim(1) as usize);
    let spec = OutputSpec { shape: vec![n], dtype: Dtype::Float32 };
    let [totals] = mlx::apply("log_sum_exp", &[logits], [spec], move |inputs, outputs| {
        let logits = inputs[0].values::<f32>();
        let work = WORK_PER_LOGIT * logits.len();
        kernels::for_each_chunk(outputs[0].values::<f32>(), 1, work, |i, to| {
            to[0] = kernels::log_sum_exp(&logits[i * vocab_size..][..vocab_size]);
        });
    });
    totals
}
