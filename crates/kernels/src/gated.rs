//! Gates of feed-forward layers, attention and delta rules.

use crate::{
    lanes::{exp, sigmoid, silu, softplus, tanh},
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / π) * (x + 0.044715 x³)))`, the approximation of Hendrycks &
    /// Gimpel, 2016.
    GeluTanh,
    /// `x * sigmoid(1.702 x)` of a gate up to `limit`, times 1 and a value from `-limit` to `limit`
    /// (gpt-oss).
    ClampedSwish { limit: f32 },
}

/// Elements of a task.
const TASK_ELEMENTS: usize = 1024;

/// `out = activation(gate) * up`, element by element, in float32, rounded once.
pub fn gated<T: Scalar>(gate: &[T], up: &[T], out: &mut [T], activation: Activation) {
    assert_eq!((gate.len(), up.len()), (out.len(), out.len()), "gate, up and out differ in length");
    // An activation costs about 16 multiply-adds.
    for_each_chunk(out, TASK_ELEMENTS, 16 * gate.len(), |i, out| {
        let (gate, up) = (&gate[i * TASK_ELEMENTS..][..out.len()], &up[i * TASK_ELEMENTS..][..out.len()]);
        dispatch(GateElements { gate, up, activation, out });
    });
}

/// `values = activation(values) * up`, on this thread.
pub(crate) fn gate_in_place(values: &mut [f32], up: &[f32], activation: Activation) {
    dispatch(GateInPlace { values, up, activation });
}

struct GateInPlace<'a> {
    values: &'a mut [f32],
    up: &'a [f32],
    activation: Activation,
}

impl WithSimd for GateInPlace<'_> {
    #[inline(always)]
    fn run(self) {
        match self.activation {
            Activation::Silu => self.each(silu_gated),
            Activation::GeluTanh => self.each(gelu_gated),
            Activation::ClampedSwish { limit } => self.each(|gate, up| clamped_swish(gate, up, limit)),
        }
    }
}

impl GateInPlace<'_> {
    #[inline(always)]
    fn each(self, gated: impl Fn(f32, f32) -> f32) {
        for (value, up) in self.values.iter_mut().zip(self.up) {
            *value = gated(*value, *up);
        }
    }
}

/// `x *= sigmoid(gate)` per row of `dim` values, in float32, rounded once. Rows of `x`
/// `[rows, dim]` are contiguous, rows of `gate` `stride` apart; its last row may end after `dim`
/// values.
pub fn sigmoid_gated<T: Scalar>(x: &mut [T], gate: &[T], stride: usize, dim: usize) {
    assert!(x.len().is_multiple_of(dim), "rows of {dim} in {}", x.len());
    let rows = x.len() / dim;
    assert!(stride >= dim && (rows == 0 || gate.len() >= (rows - 1) * stride + dim), "{rows} gates of {dim}");
    let block = (TASK_ELEMENTS / dim).max(1);
    for_each_chunk(x, block * dim, 16 * rows * dim, |i, x| {
        dispatch(SigmoidRows { x, gate: &gate[i * block * stride..], stride, dim });
    });
}

struct SigmoidRows<'a, T> {
    x: &'a mut [T],
    gate: &'a [T],
    stride: usize,
    dim: usize,
}

impl<T: Scalar> WithSimd for SigmoidRows<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (x, gate) in self.x.chunks_exact_mut(self.dim).zip(self.gate.chunks(self.stride)) {
            for (x, gate) in x.iter_mut().zip(gate) {
                *x = T::from_f32(x.to_f32() * sigmoid(gate.to_f32()));
            }
        }
    }
}

/// The gates of a gated delta rule: `decay = exp(rate * softplus(a + bias))` and
/// `beta = sigmoid(b)`, in float32.
///
/// `a`, `b`, `decay`, `beta` `[tokens, heads]`; `rate` (`-exp(A_log)`, at most 0) and `bias`
/// (`dt_bias`) `[heads]`.
pub fn delta_gates<T: Scalar>(
    [a, b]: [&[T]; 2],
    rate: &[f32],
    bias: &[f32],
    decay: &mut [f32],
    beta: &mut [f32],
) {
    let heads = rate.len();
    assert_eq!((bias.len(), b.len(), decay.len(), beta.len()), (heads, a.len(), a.len(), a.len()));
    assert!(heads > 0 && a.len().is_multiple_of(heads), "{} gates for {heads} heads", a.len());
    dispatch(DeltaGates { a, b, rate, bias, decay, beta });
}

struct DeltaGates<'a, T> {
    a: &'a [T],
    b: &'a [T],
    rate: &'a [f32],
    bias: &'a [f32],
    decay: &'a mut [f32],
    beta: &'a mut [f32],
}

impl<T: Scalar> WithSimd for DeltaGates<'_, T> {
    #[inline(always)]
    fn run(self) {
        let heads = self.rate.len();
        for (decay, a) in self.decay.chunks_exact_mut(heads).zip(self.a.chunks_exact(heads)) {
            for (((decay, a), rate), bias) in decay.iter_mut().zip(a).zip(self.rate).zip(self.bias) {
                *decay = exp(rate * softplus(a.to_f32() + bias));
            }
        }
        for (beta, b) in self.beta.iter_mut().zip(self.b) {
            *beta = sigmoid(b.to_f32());
        }
    }
}

struct GateElements<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    activation: Activation,
    out: &'a mut [T],
}

impl<T: Scalar> WithSimd for GateElements<'_, T> {
    #[inline(always)]
    fn run(self) {
        match self.activation {
            Activation::Silu => self.each(silu_gated),
            Activation::GeluTanh => self.each(gelu_gated),
            Activation::ClampedSwish { limit } => self.each(|gate, up| clamped_swish(gate, up, limit)),
        }
    }
}

impl<T: Scalar> GateElements<'_, T> {
    #[inline(always)]
    fn each(self, gated: impl Fn(f32, f32) -> f32) {
        for ((out, gate), up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *out = T::from_f32(gated(gate.to_f32(), up.to_f32()));
        }
    }
}

#[inline(always)]
fn silu_gated(gate: f32, up: f32) -> f32 {
    silu(gate) * up
}

#[inline(always)]
fn gelu_gated(gate: f32, up: f32) -> f32 {
    gelu_tanh(gate) * up
}

/// Comparisons keep NaN.
#[inline(always)]
fn clamped_swish(gate: f32, up: f32, limit: f32) -> f32 {
    let below = |x: f32| if x > limit { limit } else { x };
    let (gate, up) = (below(gate), below(up));
    let up = if up < -limit { -limit } else { up };
    gate * sigmoid(1.702 * gate) * (up + 1.0)
}

#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let inner = SQRT_2_OVER_PI * (x * x * x).mul_add(0.044715, x);
    0.5 * x * (1.0 + tanh(inner))
}
