//! Gaussian error linear units.

use mlx::{Array, Dtype};

use crate::Gelu;

#[track_caller]
pub(crate) fn gelu(x: &Array, kind: Gelu) -> Array {
    let wide = x.astype(Dtype::Float32);
    let out = match kind {
        Gelu::Exact => exact(&wide),
        Gelu::Tanh => {
            let cube = &wide * wide.square();
            let inner = (&wide + cube * 0.044_715) * (2.0 / std::f32::consts::PI).sqrt();
            &wide * 0.5 * (inner.tanh() + 1.0)
        }
    };
    out.astype(x.dtype())
}

/// With the kernels' fit of the error function, which MLX computes no better.
fn exact(x: &Array) -> Array {
    let zero = Array::scalar(0.0, Dtype::Float32);
    let z = x.maximum(&(x * -1.0)) * std::f32::consts::FRAC_1_SQRT_2;
    let t = (&z * 0.5 + 1.0).log();
    let t = (t * -1.0).exp();
    let [first, rest @ ..] = kernels::ERFC_FIT;
    let start = &t * 0.0 + first;
    let fit = rest.into_iter().fold(start, |fit, coefficient| fit * &t + coefficient);
    let tail = t * (fit - z.square()).exp() * 0.5;
    // x (1 - tail) above 0, x tail below.
    x * &tail + x.maximum(&zero) * (tail * -2.0 + 1.0)
}
