//! The elementwise middle of a gated feed-forward layer.

use crate::{
    lanes::{silu, tanh},
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{Work, vectorize},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / π) * (x + 0.044715 x³)))`, the approximation of Hendrycks & Gimpel, 2016.
    GeluTanh,
}

/// Elements a thread takes at a time.
const BLOCK: usize = 4096;

/// `out = activation(gate) * up`, element by element, in float32, rounded once.
pub fn gated<T: Scalar>(gate: &[T], up: &[T], out: &mut [T], activation: Activation) {
    assert_eq!((gate.len(), up.len()), (out.len(), out.len()), "gate, up and out differ in length");
    // An activation costs about as much as 16 multiply-adds.
    for_each_chunk(out, BLOCK, 16 * gate.len(), |i, out| {
        let (gate, up) = (&gate[i * BLOCK..][..out.len()], &up[i * BLOCK..][..out.len()]);
        vectorize(Elements { gate, up, activation, out });
    });
}

struct Elements<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    activation: Activation,
    out: &'a mut [T],
}

impl<T: Scalar> Work for Elements<'_, T> {
    #[inline(always)]
    fn run(self) {
        match self.activation {
            Activation::Silu => self.each(silu),
            Activation::GeluTanh => self.each(gelu_tanh),
        }
    }
}

impl<T: Scalar> Elements<'_, T> {
    #[inline(always)]
    fn each(self, activation: impl Fn(f32) -> f32) {
        for ((out, gate), up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *out = T::from_f32(activation(gate.to_f32()) * up.to_f32());
        }
    }
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let inner = SQRT_2_OVER_PI * (x * x * x).mul_add(0.044715, x);
    0.5 * x * (1.0 + tanh(inner))
}
