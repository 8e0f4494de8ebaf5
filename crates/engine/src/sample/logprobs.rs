//! Log-probabilities of tokens, from logits on the device to numbers.

use mlx::Array;
use nn::top_k;

use super::log_sum_exp;
use crate::api::TokenLogprobs;

/// Log-probabilities of chosen tokens, not read back yet.
pub(crate) struct Logprobs {
    /// Uint32 `[n]`.
    chosen: Array,
    /// Float32 `[n]`.
    values: Array,
    /// Uint32 and float32 `[n, top]`.
    top: Option<(Array, Array)>,
}

impl Logprobs {
    /// Log-probabilities of `chosen` `[n]` and of the `top` likeliest tokens, under float32
    /// `logits` `[n, vocab_size]`.
    pub(crate) fn of(logits: &Array, chosen: Array, top: usize) -> Logprobs {
        let n = logits.dim(0);
        let total = log_sum_exp(logits).reshape(&[n, 1]);
        let pick = |ids: &Array| logits.take_along_axis(ids, 1) - &total;
        let values = pick(&chosen.reshape(&[n, 1])).reshape(&[n]);
        let top = top.min(logits.dim(1) as usize) as i32;
        let top = (top > 0).then(|| {
            let ids = top_k(logits, top);
            (ids.clone(), pick(&ids))
        });
        Logprobs { chosen, values, top }
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let top = self.top.iter().flat_map(|(ids, values)| [ids, values]);
        [&self.chosen, &self.values].into_iter().chain(top)
    }

    /// # Errors
    /// Computing them failed.
    pub(crate) fn read(self) -> mlx::Result<Vec<TokenLogprobs>> {
        let (ids, values) = (self.chosen.to_vec::<u32>()?, self.values.to_vec::<f32>()?);
        let (width, top): (usize, Vec<(u32, f32)>) = match self.top {
            None => (0, vec![]),
            Some((ids, values)) => {
                let width = ids.dim(1) as usize;
                (width, ids.to_vec::<u32>()?.into_iter().zip(values.to_vec::<f32>()?).collect())
            }
        };
        let entry = |(i, (id, logprob)): (usize, (u32, f32))| TokenLogprobs {
            id,
            logprob,
            top: top[i * width..(i + 1) * width].to_vec(),
        };
        Ok(ids.into_iter().zip(values).enumerate().map(entry).collect())
    }
}
