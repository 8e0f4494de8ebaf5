//! Logits with a limit.

use mlx::Array;

#[track_caller]
pub(crate) fn softcap(x: &Array, cap: f32) -> Array {
    (x / cap).tanh() * cap
}
