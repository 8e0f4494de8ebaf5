//! Gaussian error linear units.

use mlx::Array;

pub use kernels::Gelu;

use crate::backend::on_backend;

/// `gelu(x)`, element by element, in `x`'s type.
#[track_caller]
pub fn gelu(x: &Array, kind: Gelu) -> Array {
    on_backend!(gelu(x, kind))
}
