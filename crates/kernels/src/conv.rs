//! The short causal depthwise convolution in front of recurrent layers, with its activation.

use crate::{
    disjoint::DisjointMut,
    lanes::silu,
    memory::Aligned,
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// The activation after the convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvActivation {
    None,
    Silu,
}

/// Transposes a weight `[channels, width]` to `[width, channels]`, for [`causal_conv`].
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

/// `out[t] = activation(sum_j taps[j] * x[t + j - (width - 1)])`; tokens before the first come from
/// `state`.
///
/// `x`, `out` `[tokens, channels]`; `taps` `[width, channels]`; `state` `[width - 1, channels]`,
/// the last inputs of the previous call; `new_state` receives those of this call.
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
    let call = ConvCall { x, taps, state, width, channels, activation, out: DisjointMut::new(out) };
    let mut blocks: Vec<usize> = (0..channels).step_by(TASK_CHANNELS).collect();
    // An activation costs about 16 multiply-adds.
    for_each_chunk(&mut blocks, 1, x.len() * (width + 16), |_, block| {
        dispatch(ConvChannels {
            call: &call,
            first: block[0],
            channels: (channels - block[0]).min(TASK_CHANNELS),
        });
    });
    let unchanged = state.len().saturating_sub(x.len());
    new_state[..unchanged].copy_from_slice(&state[state.len() - unchanged..]);
    new_state[unchanged..].copy_from_slice(&x[x.len() - (state.len() - unchanged)..]);
}

/// Channels of a task, which takes them through all tokens.
const TASK_CHANNELS: usize = 256;

/// The arguments of one call.
struct ConvCall<'a, T> {
    x: &'a [T],
    taps: &'a [f32],
    state: &'a [T],
    width: usize,
    channels: usize,
    activation: ConvActivation,
    out: DisjointMut<'a, T>,
}

struct ConvChannels<'a, T> {
    call: &'a ConvCall<'a, T>,
    first: usize,
    channels: usize,
}

impl<T: Scalar> WithSimd for ConvChannels<'_, T> {
    #[inline(always)]
    fn run(self) {
        let ConvChannels { call, first, channels: count } = self;
        let mut sums = Aligned([0.0; TASK_CHANNELS]);
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

impl<T> ConvCall<'_, T> {
    /// Token `i` of the state followed by the input.
    #[inline(always)]
    fn input(&self, i: usize) -> &[T] {
        let past = self.width - 1;
        let (from, i) = if i < past { (self.state, i) } else { (self.x, i - past) };
        &from[i * self.channels..][..self.channels]
    }
}
