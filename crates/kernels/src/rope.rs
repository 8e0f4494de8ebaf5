//! Rotary position embedding for packed rows, each token at a position of its own.

use crate::{parallel::for_each_chunk, scalar::Scalar};

/// Rotates the first `2 * frequencies.len()` values of every head of `x` `[tokens, heads, head_dim]` (Su et al.,
/// "RoFormer", 2021): pair `i` is `(x[i], x[i + half])`, turned by `positions[token] * frequencies[i]` radians.
pub fn rope<T: Scalar>(
    x: &[T],
    positions: &[i32],
    frequencies: &[f32],
    out: &mut [T],
    heads: usize,
    head_dim: usize,
) {
    let half = frequencies.len();
    assert!(2 * half <= head_dim && x.len() == out.len() && x.len() == positions.len() * heads * head_dim);
    let token = heads * head_dim;
    for_each_chunk(out, token, 8 * x.len(), |t, out| {
        let x = &x[t * token..][..token];
        let angles = frequencies.iter().map(|f| (positions[t] as f32 * f).sin_cos());
        let turns: Vec<(f32, f32)> = angles.collect();
        for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
            out.copy_from_slice(x);
            for (i, &(sin, cos)) in turns.iter().enumerate() {
                let (a, b) = (x[i].to_f32(), x[i + half].to_f32());
                out[i] = T::from_f32(a * cos - b * sin);
                out[i + half] = T::from_f32(b * cos + a * sin);
            }
        }
    });
}
