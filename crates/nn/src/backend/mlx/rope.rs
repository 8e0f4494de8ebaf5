//! Rotary position embedding.

use mlx::{Array, Dtype};

use crate::{Rope, RopePairs};

#[track_caller]
pub(crate) fn rope(x: &Array, positions: &Array, rope: &Rope) -> Array {
    let half = rope.frequencies.len() as i32;
    let frequencies = Array::from_slice(&rope.frequencies, &[1, 1, half]);
    let angles = match positions.ndim() {
        1 => positions.astype(Dtype::Float32).reshape(&[-1, 1, 1]) * frequencies,
        _ => {
            let axes: Vec<u32> = rope.axes.iter().map(|&axis| axis.into()).collect();
            let own = positions.take(&Array::from_slice(&axes, &[half]), 1);
            own.astype(Dtype::Float32).reshape(&[-1, 1, half]) * frequencies
        }
    };
    let (sin, cos) = (angles.sin() * rope.scale, angles.cos() * rope.scale);
    let (tokens, heads) = (x.dim(0), x.dim(1));
    let rotary = x.slice(-1, 0, 2 * half).astype(Dtype::Float32);
    // The axis along which a pair's two values lie.
    let (shape, axis) = match rope.pairs {
        RopePairs::Halves => ([tokens, heads, 2, half], 2),
        RopePairs::Adjacent => ([tokens, heads, half, 2], 3),
    };
    let pairs = rotary.reshape(&shape);
    let part = |i| pairs.slice(axis, i, i + 1).reshape(&[tokens, heads, half]);
    let (a, b) = (part(0), part(1));
    let column = if axis == 2 { [tokens, heads, 1, half] } else { [tokens, heads, half, 1] };
    let rotated = [&a * &cos - &b * &sin, &b * &cos + &a * &sin].map(|part| part.reshape(&column));
    let rotated = Array::concatenate(&rotated, axis).reshape(&[tokens, heads, 2 * half]).astype(x.dtype());
    Array::concatenate([&rotated, &x.slice(-1, 2 * half, x.dim(-1))], -1)
}
