//! The MLX back end in calls that keep a row's bits, as GPUs run it: here on the CPU.

use mlx::{Array, Dtype};

use super::{bits, formats, noise};
use crate::{
    Linear, Matrix, Softmax,
    backend::mlx::{attention, gated_delta, need_row_calls, project},
    quantize,
};

#[test]
fn rows_of_a_product_have_the_bits_that_they_have_alone() {
    need_row_calls(true);
    let (outputs, inputs) = (40, 128);
    let weight = noise(1, &[outputs, inputs]) * 0.2;
    let dense =
        [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16].map(|dtype| Matrix::Dense(weight.astype(dtype)));
    let quantized = formats().into_iter().map(|format| Matrix::Quantized(quantize(&weight, format)));
    for matrix in dense.into_iter().chain(quantized) {
        let layer = Linear::new(matrix, Some(noise(2, &[outputs])));
        let x = noise(3, &[128, inputs]);
        let out = |x: &Array| bits(&project(x, None, &[&layer])[0]);
        let alone: Vec<Vec<u32>> = (0..128).map(|row| out(&x.slice(0, row, row + 1))).collect();
        for rows in (1..=66).chain([97, 127, 128]) {
            let together = out(&x.slice(0, 0, rows));
            for (row, own) in together.chunks(outputs as usize).enumerate() {
                assert!(own == alone[row], "row {row} of {rows}");
            }
        }
    }
    let report = crate::take_row_calls();
    assert!(report.iter().any(|line| line.ends_with("(40 x 128, float32, inputs of float32)")), "{report:?}");
}

#[test]
fn queries_of_a_draft_have_the_bits_that_they_have_alone() {
    need_row_calls(true);
    let (heads, dim, length) = (4, 16, 37);
    let [q, k, v] =
        [noise(1, &[8, heads, dim]), noise(2, &[1, 2, length, dim]), noise(3, &[1, 2, length, dim])];
    for window in [None, Some(5)] {
        let together = attention(&q, &k, &v, window, &Softmax::scaled(0.3));
        for token in 0..8 {
            let seen = length - 8 + token + 1;
            let [k, v] = [&k, &v].map(|x| x.slice(2, 0, seen));
            let alone = attention(&q.slice(0, token, token + 1), &k, &v, window, &Softmax::scaled(0.3));
            assert_eq!(bits(&together.slice(0, token, token + 1)), bits(&alone), "{token} {window:?}");
        }
    }
}

#[test]
fn tokens_of_a_delta_rule_in_parts_have_the_bits_of_one_by_one() {
    need_row_calls(true);
    let (tokens, heads, dim) = (37, 2, 64);
    let [q, k, v] = [1, 2, 3].map(|seed| noise(seed, &[1, tokens, heads, dim]) * 0.1);
    let [g, beta] = [4, 5].map(|seed| noise(seed, &[1, tokens, heads]).sigmoid());
    let state = noise(6, &[1, heads, dim, dim]);
    let (together, last) = gated_delta([&q, &k, &v], &g, &beta, &state);
    let (mut outs, mut one_by_one) = (vec![], state);
    for token in 0..tokens {
        let [q, k, v, g, beta] = [&q, &k, &v, &g, &beta].map(|x| x.slice(1, token, token + 1));
        let (out, next) = gated_delta([&q, &k, &v], &g, &beta, &one_by_one);
        outs.push(out);
        one_by_one = next;
    }
    assert_eq!(bits(&together), bits(&Array::concatenate(&outs, 1)));
    assert_eq!(bits(&last), bits(&one_by_one));
}
