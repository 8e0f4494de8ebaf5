//! The sum of the outputs of a token's experts.

use crate::{
    lanes::sigmoid,
    parallel::for_each_chunk,
    simd::{WithSimd, dispatch},
};

/// The parts of each token's output besides those of its experts.
#[derive(Clone, Copy, Default)]
pub struct CombineWith<'a> {
    /// A shared expert's output `[tokens, hidden]`.
    pub shared: Option<&'a [f32]>,
    /// Its gate before the sigmoid, a number for each token.
    pub gate: Option<&'a [f32]>,
    /// The residual stream `[tokens, hidden]`.
    pub stream: Option<&'a [f32]>,
}

/// `out` `[tokens, hidden]`: the experts' `outputs` `[tokens, n, hidden]` multiplied by `weights`
/// `[tokens, n]` and added in their order by fused multiply-adds, then the shared expert's, then
/// the stream.
///
/// # Panics
/// If sizes differ.
pub fn combine_experts(outputs: &[f32], weights: &[f32], with: CombineWith, out: &mut [f32], hidden: usize) {
    let tokens = out.len().checked_div(hidden).unwrap_or(0);
    let per_token = weights.len().checked_div(tokens).unwrap_or(0);
    let sizes = (tokens * hidden, tokens * per_token, tokens * per_token * hidden);
    assert_eq!((out.len(), weights.len(), outputs.len()), sizes, "{tokens} tokens of {hidden}");
    let fits = |values: Option<&[f32]>, size| values.is_none_or(|values| values.len() == size);
    assert!(fits(with.shared, out.len()) && fits(with.stream, out.len()), "outputs of {tokens} tokens");
    assert!(fits(with.gate, tokens), "gates of {tokens} tokens");
    for_each_chunk(out, hidden, outputs.len(), |token, out| {
        let row = |values: &'_ [f32]| token * hidden..(token * hidden + hidden).min(values.len());
        dispatch(Token {
            outputs: &outputs[token * per_token * hidden..][..per_token * hidden],
            weights: &weights[token * per_token..][..per_token],
            shared: with.shared.map(|values| &values[row(values)]),
            factor: with.gate.map_or(1.0, |gates| sigmoid(gates[token])),
            stream: with.stream.map(|values| &values[row(values)]),
            out,
        });
    });
}

struct Token<'a> {
    outputs: &'a [f32],
    weights: &'a [f32],
    shared: Option<&'a [f32]>,
    factor: f32,
    stream: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl WithSimd for Token<'_> {
    #[inline(always)]
    fn run(self) {
        let Token { outputs, weights, shared, factor, stream, out } = self;
        out.fill(0.0);
        for (weight, output) in weights.iter().zip(outputs.chunks_exact(out.len())) {
            for (sum, value) in out.iter_mut().zip(output) {
                *sum = value.mul_add(*weight, *sum);
            }
        }
        for (sum, value) in out.iter_mut().zip(shared.unwrap_or_default()) {
            *sum += value * factor;
        }
        for (sum, value) in out.iter_mut().zip(stream.unwrap_or_default()) {
            *sum += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_experts_the_shared_one_and_the_stream() {
        // Two tokens, two experts of each, two numbers.
        let outputs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let weights = [0.5, 2.0, 1.0, -1.0];
        let mut out = [9.0; 4];
        combine_experts(&outputs, &weights, CombineWith::default(), &mut out, 2);
        assert_eq!(out, [6.5, 9.0, -2.0, -2.0]);
        let with = CombineWith {
            shared: Some(&[2.0, 4.0, 6.0, 8.0]),
            gate: Some(&[0.0, 0.0]),
            stream: Some(&[10.0, 20.0, 30.0, 40.0]),
        };
        combine_experts(&outputs, &weights, with, &mut out, 2);
        assert_eq!(out, [17.5, 31.0, 31.0, 42.0]);
        combine_experts(&outputs, &weights, CombineWith { gate: None, ..with }, &mut out, 2);
        assert_eq!(out, [18.5, 33.0, 34.0, 46.0]);
    }
}
