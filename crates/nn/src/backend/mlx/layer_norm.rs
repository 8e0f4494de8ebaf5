//! Layer norm.

use mlx::{Array, Dtype};

#[track_caller]
pub(crate) fn layer_norm(x: &Array, [weight, bias]: [&Array; 2], eps: f32) -> Array {
    let wide = x.astype(Dtype::Float32);
    let size = x.dim(-1) as f32;
    let centred = &wide - wide.sum(-1, true) * (1.0 / size);
    let variance = centred.square().sum(-1, true) * (1.0 / size);
    (centred * (variance + eps).rsqrt() * weight + bias).astype(x.dtype())
}
