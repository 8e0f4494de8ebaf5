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

/// Where tokens are: on a line, or in a space of several axes.
#[derive(Clone, Copy, Debug)]
pub struct RopePositions<'a> {
    /// `[tokens, axes]`, or `[tokens]`: the same position on every axis.
    pub values: &'a [i32],
    /// The axis of each pair; none: the first for all.
    pub axes: &'a [u8],
}

/// Rotates the first `2 * frequencies.len()` values of every head of `x`
/// `[tokens, heads, head_dim]` (Su et al., "RoFormer", 2021): pair `i` by its token's position on
/// the pair's axis times `frequencies[i]` radians, cosine and sine multiplied by `scale`. The other
/// values are copied. All are rounded once.
#[expect(clippy::too_many_arguments, reason = "all sizes of one formula")]
pub fn rope<T: Scalar, U: Scalar>(
    x: &[T],
    positions: RopePositions,
    frequencies: &[f32],
    pairs: RopePairs,
    scale: f32,
    out: &mut [U],
    heads: usize,
    head_dim: usize,
) {
    let half = frequencies.len();
    let RopePositions { values: positions, axes } = positions;
    let token = heads * head_dim;
    assert!(2 * half <= head_dim && x.len() == out.len() && x.len().is_multiple_of(token));
    let columns = positions.len() / (x.len() / token).max(1);
    assert_eq!(positions.len() * token, columns * x.len(), "positions of every token");
    assert!(columns <= 1 || axes.len() == half, "an axis of every pair");
    assert!(
        axes.iter().all(|&axis| columns <= 1 || usize::from(axis) < columns),
        "axes of {columns} positions"
    );
    let fastest = frequencies.iter().fold(0.0f32, |max, f| max.max(f.abs()));
    for_each_chunk(out, token, 8 * x.len(), |t, out| {
        with_scratch(2 * half, |memory| {
            let (sin, cos) = memory.split_at_mut(half);
            let own = &positions[t * columns..][..columns];
            let farthest = own.iter().fold(0.0f32, |max, p| max.max((*p as f32).abs()));
            // Radians, until they are replaced by their sines.
            match own {
                [position] => sin.iter_mut().zip(frequencies).for_each(|(r, f)| *r = *position as f32 * f),
                _ => {
                    let turns = axes.iter().zip(frequencies);
                    let turns = turns.map(|(&axis, f)| own[usize::from(axis)] as f32 * f);
                    sin.iter_mut().zip(turns).for_each(|(radians, turn)| *radians = turn);
                }
            }
            if farthest * fastest <= MAX_RADIANS {
                dispatch(Rotations { scale, sin, cos });
            } else {
                for (sin, cos) in sin.iter_mut().zip(&mut *cos) {
                    let turn = sin.sin_cos();
                    (*sin, *cos) = (turn.0 * scale, turn.1 * scale);
                }
            }
            dispatch(RotateHeads { x: &x[t * token..][..token], sin, cos, pairs, head_dim, out });
        });
    });
}

/// Sines and cosines of one token's radians, which are in the place of the sines.
struct Rotations<'a> {
    scale: f32,
    sin: &'a mut [f32],
    cos: &'a mut [f32],
}

impl WithSimd for Rotations<'_> {
    #[inline(always)]
    fn run(self) {
        for (sin, cos) in self.sin.iter_mut().zip(self.cos) {
            let turn = sin_cos(*sin);
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
