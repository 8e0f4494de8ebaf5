//! Logits with a limit.

use mlx::Array;

use crate::backend::on_backend;

/// `cap * tanh(x / cap)`, element by element, in `x`'s type.
#[track_caller]
pub fn softcap(x: &Array, cap: f32) -> Array {
    on_backend!(softcap(x, cap))
}
