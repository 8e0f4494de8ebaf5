//! Short causal convolution.

use kernels::ConvActivation;
use mlx::{Array, apply};

use super::values::{dispatch, like};

#[track_caller]
pub(crate) fn causal_conv(x: &Array, weight: &Array, state: &Array, silu: bool) -> (Array, Array) {
    let (channels, weight) = (x.dim(1) as usize, weight.astype(x.dtype()));
    let activation = if silu { ConvActivation::Silu } else { ConvActivation::None };
    let outputs = [like(x, x.shape()), like(x, state.shape())];
    let [out, state] = apply("causal_conv", &[x, &weight, state], outputs, move |inputs, outputs| {
        let [out, state] = outputs else { unreachable!("two outputs") };
        let (x, weight, past) = (&inputs[0], &inputs[1], &inputs[2]);
        dispatch!(x.dtype(), T => {
            let taps = kernels::conv_taps::<T>(weight.values(), channels);
            kernels::causal_conv::<T>(
                x.values(), &taps, past.values(), out.values(), state.values(), channels, activation,
            )
        })
    });
    (out, state)
}
