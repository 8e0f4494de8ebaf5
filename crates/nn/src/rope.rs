//! Rotary position embedding.

use mlx::Array;

pub use kernels::RopePairs;

use crate::backend::on_backend;

/// A rotary position embedding of one kind of layer (Su et al., "RoFormer", 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair.
    pub frequencies: Vec<f32>,
    /// The axis of each pair where positions have several, as those of images; none: the first for
    /// all.
    pub axes: Vec<u8>,
    pub pairs: RopePairs,
    /// Multiplies sine and cosine (YaRN's attention factor); 1 otherwise.
    pub scale: f32,
}

/// Rotates the first `2 * frequencies.len()` values of each head of `x`
/// `[tokens, heads, head_dim]`, token `t` at `positions[t]` (int32 `[tokens]`, or
/// `[tokens, axes]`).
#[track_caller]
pub fn rope(x: &Array, positions: &Array, rope: &Rope) -> Array {
    on_backend!(rope(x, positions, rope))
}
