//! Rows of batched arrays, and samplers of rows.

use mlx::Array;

use crate::{sample::Sampler, speculate::drafter::DraftRequest};

/// Rows `indices`, ascending, of `x`.
pub(super) fn pick(x: &Array, indices: &[i32]) -> Array {
    match *indices {
        _ if indices.len() as i32 == x.dim(0) => x.clone(),
        [index] => x.slice(0, index, index + 1),
        _ => x.take(&Array::from_slice(indices, &[indices.len() as i32]), 0),
    }
}

pub(super) fn concatenated(parts: &[Array]) -> Array {
    match parts {
        [one] => one.clone(),
        _ => Array::concatenate(parts, 0),
    }
}

/// The sampler of a sequence, with its noise and penalties.
pub(super) fn sampler(request: &DraftRequest, vocab_size: usize) -> Sampler {
    let (prompt, output) = request.tokens.split_at(request.prompt);
    Sampler::new(request.sampling, vocab_size, prompt, output)
}
