//! Rotary position embedding for packed rows, each token at a position of its own.

use crate::{parallel::for_each_chunk, scalar::Scalar};

/// Which two values of a head make pair `i` of `half`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `(x[i], x[i + half])`
    Halves,
    /// `(x[2i], x[2i + 1])`
    Adjacent,
}

/// Rotates the first `2 * frequencies.len()` values of every head of `x` `[tokens, heads, head_dim]` (Su et al.,
/// "RoFormer", 2021): pair `i` is turned by `positions[token] * frequencies[i]` radians, cosine and sine both
/// multiplied by `scale`. The other values are copied.
#[expect(clippy::too_many_arguments, reason = "all sizes of one formula")]
pub fn rope<T: Scalar>(
    x: &[T],
    positions: &[i32],
    frequencies: &[f32],
    pairs: RopePairs,
    scale: f32,
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
        let turns: Vec<(f32, f32)> = angles.map(|(sin, cos)| (sin * scale, cos * scale)).collect();
        out.copy_from_slice(x);
        for head in out.chunks_exact_mut(head_dim) {
            match pairs {
                RopePairs::Halves => {
                    let (first, second) = head[..2 * half].split_at_mut(half);
                    let pairs = first.iter_mut().zip(second);
                    pairs.zip(&turns).for_each(|((a, b), &by)| turn(a, b, by));
                }
                RopePairs::Adjacent => {
                    let pairs = head.as_chunks_mut::<2>().0.iter_mut();
                    pairs.zip(&turns).for_each(|([a, b], &by)| turn(a, b, by));
                }
            }
        }
    });
}

#[inline(always)]
fn turn<T: Scalar>(a: &mut T, b: &mut T, (sin, cos): (f32, f32)) {
    let (x, y) = (a.to_f32(), b.to_f32());
    *a = T::from_f32(x * cos - y * sin);
    *b = T::from_f32(y * cos + x * sin);
}
