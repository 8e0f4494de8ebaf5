//! The short causal depthwise convolution in front of recurrent layers, with its activation.

use crate::{
    lanes::silu,
    parallel::for_each_chunk,
    scalar::Scalar,
    shared::{Aligned, Parts},
    simd::{Work, vectorize},
};

/// What follows the convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvActivation {
    None,
    Silu,
}

/// A weight `[channels, width]` as [`causal_conv`] takes it, `[width, channels]`.
#[must_use]
pub fn conv_taps<T: Scalar>(weight: &[T], channels: usize) -> Vec<f32> {
    let mut taps = vec![0.0; weight.len()];
    for (c, weights) in weight.chunks_exact((weight.len() / channels).max(1)).enumerate() {
        for (j, w) in weights.iter().enumerate() {
            taps[j * channels + c] = w.to_f32();
        }
    }
    taps
}

/// `out[t] = activation(sum_j taps[j] * x[t + j - (width - 1)])`, where tokens before the first come from `state`.
///
/// `x`, `out` `[tokens, channels]`; `taps` `[width, channels]`; `state` `[width - 1, channels]`, the last inputs
/// of the previous call; `new_state` receives this call's.
pub fn causal_conv<T: Scalar>(
    x: &[T],
    taps: &[f32],
    state: &[T],
    out: &mut [T],
    new_state: &mut [T],
    channels: usize,
    activation: ConvActivation,
) {
    let width = taps.len() / channels;
    let tokens = x.len() / channels;
    assert!(width > 0 && taps.len() == width * channels, "{} taps for {channels} channels", taps.len());
    assert_eq!((state.len(), out.len()), ((width - 1) * channels, tokens * channels));
    assert_eq!(new_state.len(), state.len(), "states differ in length");
    let call = Call { x, taps, state, width, channels, activation, out: Parts::new(out) };
    let mut blocks: Vec<usize> = (0..channels).step_by(BLOCK).collect();
    // The activation costs about as much as 16 multiply-adds.
    for_each_chunk(&mut blocks, 1, x.len() * (width + 16), |_, block| {
        vectorize(Block { call: &call, first: block[0], channels: (channels - block[0]).min(BLOCK) });
    });
    let kept = state.len().saturating_sub(x.len());
    new_state[..kept].copy_from_slice(&state[state.len() - kept..]);
    new_state[kept..].copy_from_slice(&x[x.len() - (state.len() - kept)..]);
}

/// Channels a thread takes through all tokens.
const BLOCK: usize = 256;

/// What one call was given.
struct Call<'a, T> {
    x: &'a [T],
    taps: &'a [f32],
    state: &'a [T],
    width: usize,
    channels: usize,
    activation: ConvActivation,
    out: Parts<'a, T>,
}

struct Block<'a, T> {
    call: &'a Call<'a, T>,
    first: usize,
    channels: usize,
}

impl<T: Scalar> Work for Block<'_, T> {
    #[inline(always)]
    #[allow(unsafe_code, reason = "blocks write channels of their own")]
    fn run(self) {
        let Block { call, first, channels: count } = self;
        let mut sums = Aligned([0.0; BLOCK]);
        let sums = &mut sums.0[..count];
        for t in 0..call.x.len() / call.channels {
            sums.fill(0.0);
            for (j, taps) in call.taps.chunks_exact(call.channels).enumerate() {
                let x = &call.input(t + j)[first..first + count];
                for ((sum, x), w) in sums.iter_mut().zip(x).zip(&taps[first..first + count]) {
                    *sum = x.to_f32().mul_add(*w, *sum);
                }
            }
            if call.activation == ConvActivation::Silu {
                for sum in &mut *sums {
                    *sum = silu(*sum);
                }
            }
            // SAFETY: each channel belongs to one task.
            let out = unsafe { call.out.part(t * call.channels + first, count) };
            for (out, sum) in out.iter_mut().zip(&*sums) {
                *out = T::from_f32(*sum);
            }
        }
    }
}

impl<T> Call<'_, T> {
    /// Token `i` of the state, then of the input.
    #[inline(always)]
    fn input(&self, i: usize) -> &[T] {
        let past = self.width - 1;
        let (from, i) = if i < past { (self.state, i) } else { (self.x, i - past) };
        &from[i * self.channels..][..self.channels]
    }
}
