//! RMS norm.

use mlx::{Array, fast};

use crate::RmsNorm;

#[track_caller]
pub(crate) fn rms_norm(x: &Array, norm: &RmsNorm) -> Array {
    // MLX would widen the result to a wider weight's type.
    fast::rms_norm(x, &norm.weight, norm.eps).astype(x.dtype())
}

/// `norm(x)`, or `x` if there is no norm.
#[track_caller]
pub(super) fn normed(x: &Array, norm: Option<&RmsNorm>) -> Array {
    norm.map_or_else(|| x.clone(), |norm| rms_norm(x, norm))
}
