//! Short causal convolution.

use mlx::Array;

use crate::backend::on_backend;

/// The causal depthwise convolution of recurrent layers, followed by SiLU if `silu`.
///
/// `x` `[tokens, channels]`, `weight` `[channels, width]`, `state` `[width - 1, channels]`: the
/// inputs before the first token. Returns the output and the state after the last token.
#[track_caller]
pub(crate) fn causal_conv(x: &Array, weight: &Array, state: &Array, silu: bool) -> (Array, Array) {
    on_backend!(causal_conv(x, weight, state, silu))
}
