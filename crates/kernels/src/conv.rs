//! The short causal depthwise convolution in front of recurrent layers, with its activation.

use crate::{
    lanes::silu,
    parallel::for_each_chunk,
    scalar::{Scalar, widen},
    simd::{Work, vectorize},
};

/// What follows the convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvActivation {
    None,
    Silu,
}

/// `out[t] = activation(sum_j weight[.., j] * x[t + j - (width - 1)])`, where tokens before the first come from
/// `state`.
///
/// `x`, `out` `[tokens, channels]`; `weight` `[channels, width]`; `state` `[width - 1, channels]`, the last inputs
/// of the previous call; `new_state` receives this call's.
pub fn causal_conv<T: Scalar>(
    x: &[T],
    weight: &[T],
    state: &[T],
    out: &mut [T],
    new_state: &mut [T],
    channels: usize,
    activation: ConvActivation,
) {
    let width = weight.len() / channels;
    let tokens = x.len() / channels;
    assert_eq!((state.len(), out.len()), ((width - 1) * channels, tokens * channels));
    let inputs = [widen(state, channels, 1), widen(x, channels, 1)].concat();
    let mut taps = vec![0.0; weight.len()];
    for (c, weights) in weight.chunks_exact(width).enumerate() {
        weights.iter().enumerate().for_each(|(j, w)| taps[j * channels + c] = w.to_f32());
    }
    // The activation costs about as much as 16 multiply-adds.
    for_each_chunk(out, channels, x.len() * (width + 16), |t, out| {
        vectorize(Token {
            inputs: &inputs[t * channels..][..width * channels],
            taps: &taps,
            activation,
            out,
        });
    });
    let last = [state, x].concat();
    new_state.copy_from_slice(&last[last.len() - new_state.len()..]);
}

struct Token<'a, T> {
    inputs: &'a [f32],
    taps: &'a [f32],
    activation: ConvActivation,
    out: &'a mut [T],
}

impl<T: Scalar> Work for Token<'_, T> {
    #[inline(always)]
    fn run(self) {
        let channels = self.out.len();
        let mut sums = vec![0.0f32; channels];
        for (inputs, taps) in self.inputs.chunks_exact(channels).zip(self.taps.chunks_exact(channels)) {
            for ((sum, x), w) in sums.iter_mut().zip(inputs).zip(taps) {
                *sum = x.mul_add(*w, *sum);
            }
        }
        if self.activation == ConvActivation::Silu {
            for sum in &mut sums {
                *sum = silu(*sum);
            }
        }
        for (out, sum) in self.out.iter_mut().zip(&sums) {
            *out = T::from_f32(*sum);
        }
    }
}
