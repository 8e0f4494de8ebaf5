//! Short causal convolution.

use mlx::{Array, cuda::Arguments};

use super::{
    super::cpu,
    launch::{empty, is_f32, launch, resident, resident_f32},
};

#[track_caller]
pub(crate) fn causal_conv(x: &Array, weight: &Array, past: &Array, silu: bool) -> (Array, Array) {
    // A grid's second dimension.
    const MOST_TOKENS: i32 = 65_535;
    let (tokens, channels, width) = (x.dim(0), x.dim(1), weight.dim(1));
    if !is_f32(x) || !is_f32(past) || x.size() == 0 || width < 2 || tokens > MOST_TOKENS {
        return cpu::causal_conv(x, weight, past, silu);
    }
    let (x, weight, past) = (resident(x), resident_f32(weight), resident(past));
    let (out, next) = (empty(x.shape()), empty(past.shape()));
    let arguments = Arguments::new()
        .with(x.device_address())
        .with(weight.device_address())
        .with(past.device_address())
        .with(out.device_address())
        .with(next.device_address())
        .with(tokens)
        .with(channels)
        .with(width)
        .with(i32::from(silu));
    launch("causal_conv", [(channels as usize).div_ceil(256), tokens as usize, 1], 256, 0, arguments);
    (out, next)
}
