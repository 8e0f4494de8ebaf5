//! Rotary position embedding for packed rows, each token at a position of its own.

use crate::{
    lanes::{MOST_RADIANS, sin_cos},
    parallel::for_each_chunk,
    scalar::Scalar,
    shared::with_scratch,
    simd::{Work, vectorize},
};

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
/// multiplied by `scale`. The other values are copied. All are rounded once.
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
    let fastest = frequencies.iter().fold(0.0f32, |most, f| most.max(f.abs()));
    for_each_chunk(out, token, 8 * x.len(), |t, out| {
        with_scratch(2 * half, |turns| {
            let (sin, cos) = turns.split_at_mut(half);
            let position = positions[t] as f32;
            if position.abs() * fastest <= MOST_RADIANS {
                vectorize(Turns { position, frequencies, scale, sin, cos });
            } else {
                for ((sin, cos), f) in sin.iter_mut().zip(&mut *cos).zip(frequencies) {
                    let turn = (position * f).sin_cos();
                    (*sin, *cos) = (turn.0 * scale, turn.1 * scale);
                }
            }
            vectorize(Heads { x: &x[t * token..][..token], sin, cos, pairs, head_dim, out });
        });
    });
}

/// Sines and cosines of one position.
struct Turns<'a> {
    position: f32,
    frequencies: &'a [f32],
    scale: f32,
    sin: &'a mut [f32],
    cos: &'a mut [f32],
}

impl Work for Turns<'_> {
    #[inline(always)]
    fn run(self) {
        for ((sin, cos), f) in self.sin.iter_mut().zip(self.cos).zip(self.frequencies) {
            let turn = sin_cos(self.position * f);
            (*sin, *cos) = (turn.0 * self.scale, turn.1 * self.scale);
        }
    }
}

/// All heads of one token.
struct Heads<'a, T, U> {
    x: &'a [T],
    sin: &'a [f32],
    cos: &'a [f32],
    pairs: RopePairs,
    head_dim: usize,
    out: &'a mut [U],
}

impl<T: Scalar, U: Scalar> Work for Heads<'_, T, U> {
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
                        (*a, *b) = turn(*x, *y, *sin, *cos);
                    }
                }
                RopePairs::Adjacent => {
                    let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
                    for ((out, [x, y]), (sin, cos)) in pairs.zip(self.sin.iter().zip(self.cos)) {
                        (out[0], out[1]) = turn(*x, *y, *sin, *cos);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn turn<T: Scalar, U: Scalar>(a: T, b: T, sin: f32, cos: f32) -> (U, U) {
    let (x, y) = (a.to_f32(), b.to_f32());
    (U::from_f32(x * cos - y * sin), U::from_f32(y * cos + x * sin))
}
