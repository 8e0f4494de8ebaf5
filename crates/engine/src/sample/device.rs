//! Samples on an NVIDIA GPU, where the logits are, for draws without filters; gives the CPU's
//! tokens.

use mlx::Array;
use nn::PlainDraw;

use super::{Draw, SampleOutput};

/// `None` if the logits are elsewhere or a draw has a filter.
pub(super) fn sample(logits: &Array, draws: &[(Draw, Vec<Array>)]) -> Option<SampleOutput> {
    let vocab_size = logits.dim(1) as usize;
    let plain: Option<Vec<PlainDraw>> = draws.iter().map(|(draw, _)| draw.as_plain(vocab_size)).collect();
    let [tokens, faults] = nn::sample_plain(logits, &plain?)?;
    Some(SampleOutput { tokens, faults })
}

impl Draw {
    /// `None` unless it draws from all tokens by their own logits.
    fn as_plain(&self, vocab_size: usize) -> Option<PlainDraw> {
        let sampling = &self.sampling;
        let own = self.bias.is_empty() && self.allowed.is_none() && self.history.is_none();
        (own && (sampling.keeps_all(vocab_size) || sampling.temperature == 0.0)).then_some(PlainDraw {
            temperature: sampling.temperature,
            seed: sampling.seed,
            position: self.position,
        })
    }
}
