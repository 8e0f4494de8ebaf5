//! Rotary position embedding, each token at its own position.

use crate::{
    lanes::{MAX_RADIANS, sin_cos},
    memory::with_scratch,
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// The two values of a head that form pair `i` of `half`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `(x[i], x[i + half])`
    Halves,
    /// `(x[2i], x[2i + 1])`
    Adjacent,
}

/// Rotates the first `2 * frequencies.len()` values of every head of `x`
/// `[tokens, heads, head_dim]` (Su et al., "RoFormer", 2021): pair `i` by
/// `positions[token] * frequencies[i]` radians, cosine and sine multiplied by `scale`. The other
/// values are copied. All are rounded once.
#[expect(clippy::too_many_arguments, reason = "all sizes of one formula")]
pub fn rope<T: Scalar, U: Scalar>(
    x: &[T],
    positions: &[i32],
    frequencies: &[f32],
    pairs: RopePairs,
    scale: f32,
    out: &mut [U],
    heads: usize,
    head_dim: usize,
) {
    let half = frequencies.len();
    assert!(2 * half <= head_dim && x.len() == out.len() && x.len() == positions.len() * heads * head_dim);
    let token = heads * head_dim;
    let fastest = frequencies.iter().fold(0.0f32, |max, f| max.max(f.abs()));
    for_each_chunk(out, token, 8 * x.len(), |t, out| {
        with_scratch(2 * half, |memory| {
            let (sin, cos) = memory.split_at_mut(half);
            let position = positions[t] as f32;
            if position.abs() * fastest <= MAX_RADIANS {
                dispatch(Rotations { position, frequencies, scale, sin, cos });
            } else {
                for ((sin, cos), f) in sin.iter_mut().zip(&mut *cos).zip(frequencies) {
                    let turn = (position * f).sin_cos();
                    (*sin, *cos) = (turn.0 * scale, turn.1 * scale);
                }
            }
            dispatch(RotateHeads { x: &x[t * token..][..token], sin, cos, pairs, head_dim, out });
        });
    });
}

/// Sines and cosines of one position.
struct Rotations<'a> {
    position: f32,
    frequencies: &'a [f32],
    scale: f32,
    sin: &'a mut [f32],
    cos: &'a mut [f32],
}

impl WithSimd for Rotations<'_> {
    #[inline(always)]
    fn run(self) {
        for ((sin, cos), f) in self.sin.iter_mut().zip(self.cos).zip(self.frequencies) {
            let turn = sin_cos(self.position * f);
            (*sin, *cos) = (turn.0 * self.scale, turn.1 * self.scale);
        }
    }
}

/// Rotates all heads of one token.
struct RotateHeads<'a, T, U> {
    x: &'a [T],
    sin: &'a [f32],
    cos: &'a [f32],
    pairs: RopePairs,
    head_dim: usize,
    out: &'a mut [U],
}

impl<T: Scalar, U: Scalar> WithSimd for RotateHeads<'_, T, U> {
    #[inline(always)]
    fn run(self) {
        let half = self.sin.len();
        for (out, x) in self.out.chunks_exact_mut(self.head_dim).zip(self.x.chunks_exact(self.head_dim)) {
            let (out, rest) = out.split_at_mut(2 * half);
            let (x, rest_x) = x.split_at(2 * half);
            rest.iter_mut().zip(rest_x).for_each(|(out, x)| *out = U::from_f32(x.to_f32()));
            match self.pairs {
                RopePairs::Halves => {
                    let ((a, b), (x, y)) = (out.split_at_mut(half), x.split_at(half));
                    let pairs = a.iter_mut().zip(b).zip(x.iter().zip(y));
                    for (((a, b), (x, y)), (sin, cos)) in pairs.zip(self.sin.iter().zip(self.cos)) {
                        (*a, *b) = rotate(*x, *y, *sin, *cos);
                    }
                }
                RopePairs::Adjacent => {
                    let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
                    for ((out, [x, y]), (sin, cos)) in pairs.zip(self.sin.iter().zip(self.cos)) {
                        (out[0], out[1]) = rotate(*x, *y, *sin, *cos);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn rotate<T: Scalar, U: Scalar>(a: T, b: T, sin: f32, cos: f32) -> (U, U) {
    let (x, y) = (a.to_f32(), b.to_f32());
    (U::from_f32(x * cos - y * sin), U::from_f32(y * cos + x * sin))
}
