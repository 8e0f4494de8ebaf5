//! Whole pieces of layers against the same made of the smaller operations.

use std::cell::RefCell;

use super::{bits, close, formats, noise};
use crate::{
    Array, DeltaHeads, DeltaNet, DeltaRow, DeltaWeights, Dtype, Heads, KvBuffer, KvRow, Linear, Matrix,
    Precision, Recurrence, RmsNorm, Softmax, attend_heads, delta_net, eval,
    fast::{self, Activation, Onto, Rope, RopePairs},
    packed::Stored,
    portable,
    quant::{self, Mode, Quantization},
    set_precision,
};

const HIDDEN: i32 = 64;
const INNER: i32 = 128;

fn dense(seed: u64, outputs: i32, inputs: i32) -> Linear {
    Linear::new(Matrix::Dense(noise(seed, &[outputs, inputs]) * 0.2), None)
}

fn norm(seed: u64, size: i32) -> RmsNorm {
    RmsNorm::new(noise(seed, &[size]), 1e-6)
}

/// A layer in every format, with and without a bias.
fn layers(outputs: i32, inputs: i32) -> impl Iterator<Item = Linear> {
    let weight = noise(21, &[outputs, inputs]) * 0.2;
    let small = formats().into_iter().filter(move |q| inputs % q.group_size == 0);
    let quantized = small.map({
        let weight = weight.clone();
        move |q| Linear::new(Matrix::Quantized(quant::quantize(&weight, q)), None)
    });
    let bias = Some(noise(22, &[outputs]).astype(Dtype::Bfloat16));
    let half = Matrix::Dense(weight.astype(Dtype::Float16));
    [Linear::new(Matrix::Dense(weight), bias), Linear::new(half, None)].into_iter().chain(quantized)
}

#[test]
fn projections_share_a_norm() {
    // MLX multiplies what it is given, unrounded.
    set_precision(Precision::Float32);
    let (x, norm, other) = (noise(1, &[5, HIDDEN]), norm(2, HIDDEN), dense(3, 24, HIDDEN));
    for layer in layers(48, HIDDEN) {
        for norm in [Some(&norm), None] {
            let got = fast::project(&x, norm, [&layer, &other]);
            let expected = portable::project(&x, norm, &[&layer, &other]);
            got.iter().zip(&expected).for_each(|(got, expected)| close(got, expected, 1e-3));
        }
        close(&layer.forward(&x), &portable::project(&x, None, &[&layer])[0], 1e-3);
    }
}

#[test]
fn rows_are_those_of_the_matrix() {
    let indices = Array::from_slice(&[47u32, 0, 7, 7], &[4]);
    for layer in layers(48, 256) {
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let (got, expected) =
                (layer.rows(&indices, Some(dtype)), layer.weight.rows(&indices, Some(Dtype::Float32)));
            // MLX rounds scales to the type asked for, we the result.
            assert_eq!(got.dtype(), dtype);
            match dtype {
                Dtype::Float32 => assert_eq!(bits(&got), bits(&expected)),
                _ => close(&got, &expected, 0.02),
            }
        }
    }
}

/// Rearranged for the kernels, a layer does all it did, to the bit.
#[test]
fn packed_layers_are_the_same() {
    let (x, indices) = (noise(1, &[5, HIDDEN]), Array::from_slice(&[47u32, 0, 7], &[3]));
    let mut packed = 0;
    for bits in [2, 3, 4, 8] {
        let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits };
        for outputs in [48, 40] {
            let of = || {
                Matrix::Quantized(quant::quantize(
                    &(noise(bits as u64, &[outputs, HIDDEN]) * 0.2),
                    quantization,
                ))
            };
            let (plain, other) = (Linear::new(of(), None), Linear::packed(of(), None).unwrap());
            packed += usize::from(matches!(other.weight, Stored::Packed(_)));
            let norm = norm(2, HIDDEN);
            for x in [&x, &x.slice(0, 1, 2), &x.astype(Dtype::Bfloat16)] {
                let [got] = fast::project(x, Some(&norm), [&other]);
                let [expected] = fast::project(x, Some(&norm), [&plain]);
                assert_eq!(self::bits(&got), self::bits(&expected), "{bits} bits, {outputs} outputs");
            }
            let indices = indices.slice(0, 1, 3);
            for dtype in [None, Some(Dtype::Float32), Some(Dtype::Bfloat16)] {
                let [got, expected] = [&other, &plain].map(|layer| layer.rows(&indices, dtype));
                assert_eq!(got.dtype(), expected.dtype());
                assert_eq!(self::bits(&got), self::bits(&expected), "{bits} bits, {outputs} outputs");
            }
        }
    }
    assert_eq!(packed, 3, "2, 4 and 8 bits, whole blocks of rows");
    set_precision(Precision::Float32);
    let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits: 4 };
    let matrix = Matrix::Quantized(quant::quantize(&noise(3, &[48, HIDDEN]), quantization));
    assert!(matches!(Linear::packed(matrix, None).unwrap().weight, Stored::Plain(_)), "not in float32");
}

/// Alone, and beside a layer that rounds.
#[test]
fn unrounded_layers_give_the_bits_of_float32_in_every_precision() {
    let (x, before) = (noise(1, &[5, HIDDEN]), norm(2, HIDDEN));
    let weight = noise(21, &[48, HIDDEN]) * 0.2;
    let small = formats().into_iter().filter(|q| HIDDEN % q.group_size == 0);
    let quantized = small.map(|q| Matrix::Quantized(quant::quantize(&weight, q)));
    for matrix in quantized.chain([Matrix::Dense(weight.astype(Dtype::Bfloat16))]) {
        let copy = || match &matrix {
            Matrix::Dense(weight) => Matrix::Dense(weight.clone()),
            Matrix::Quantized(weight) => Matrix::Quantized(weight.clone()),
        };
        let of = || Linear::new(copy(), None);
        set_precision(Precision::Float32);
        let [expected] = fast::project(&x, Some(&before), [&of()]).map(|out| bits(&out));
        for precision in [Precision::Rounded, Precision::Int8] {
            set_precision(precision);
            let unrounded = Linear::unrounded(copy(), None);
            let [alone] = fast::project(&x, Some(&before), [&of()]).map(|out| bits(&out));
            assert_ne!(alone, expected, "{precision:?} rounds");
            let [rounded, got] = fast::project(&x, Some(&before), [&of(), &unrounded]).map(|out| bits(&out));
            assert_eq!((rounded, got), (alone, expected.clone()), "{precision:?}");
        }
    }
}

#[test]
fn outputs_are_added_to_the_stream_through_a_norm_behind() {
    // MLX multiplies what it is given, unrounded.
    set_precision(Precision::Float32);
    let (stream, x, gate) = (noise(1, &[5, HIDDEN]), noise(2, &[5, INNER]), noise(3, &[5, INNER]));
    let (per_head, behind) = (norm(4, INNER / 4), norm(5, HIDDEN));
    for layer in layers(HIDDEN, INNER) {
        for after in [None, Some(&behind)] {
            let onto = Onto { stream: &stream, after };
            let (got, expected) =
                (fast::add_projected(onto, &x, &layer), portable::add_projected(onto, &x, &layer));
            close(&got, &expected, 2e-3);
            let got = fast::add_gated_norm(onto, &x, &gate, &per_head, &layer);
            let expected = portable::add_gated_norm(onto, &x, &gate, &per_head, &layer);
            close(&got, &expected, 2e-3);
        }
    }
}

#[test]
fn feed_forward_is_its_parts() {
    let (x, before, behind) = (noise(1, &[5, HIDDEN]), norm(2, HIDDEN), norm(3, HIDDEN));
    let block = [dense(4, INNER, HIDDEN), dense(5, INNER, HIDDEN), dense(6, HIDDEN, INNER)];
    let ontos =
        [None, Some(Onto { stream: &x, after: None }), Some(Onto { stream: &x, after: Some(&behind) })];
    for onto in ontos {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let run =
                |x: &Array, onto| fast::feed_forward(x, Some(&before), block.each_ref(), activation, onto);
            let expected = portable::feed_forward(&x, Some(&before), block.each_ref(), activation, onto);
            close(&run(&x, onto), &expected, 2e-3);
            // In half precision only the ends are rounded.
            let half = x.astype(Dtype::Bfloat16);
            let wide = half.astype(Dtype::Float32);
            let on = |stream| onto.map(|onto| Onto { stream, ..onto });
            let got = run(&half, on(&half));
            assert_eq!(got.dtype(), Dtype::Bfloat16);
            assert_eq!(bits(&got), bits(&run(&wide, on(&wide)).astype(Dtype::Bfloat16)));
        }
    }
}

/// Tokens of each of three sequences in each of three steps.
const STEPS: [[i32; 3]; 3] = [[3, 0, 300], [1, 5, 1], [1, 1, 2]];

/// What each sequence gets from `step`, which is called with the rows of a step (sequence, its first token, tokens),
/// all sequences together or one after the other.
fn outputs(together: bool, step: impl Fn(&[(usize, i32, i32)]) -> Array) -> Vec<Vec<Array>> {
    let mut outs = vec![vec![], vec![], vec![]];
    let mut past = [0; 3];
    for tokens in STEPS {
        let rows: Vec<_> = (0..3).filter(|&i| tokens[i] > 0).map(|i| (i, past[i], tokens[i])).collect();
        let batches = if together { vec![&rows[..]] } else { rows.chunks(1).collect() };
        for batch in batches {
            let out = step(batch);
            eval([&out]).expect("evaluates");
            let mut start = 0;
            for &(i, _, n) in batch {
                outs[i].push(out.slice(0, start, start + n));
                start += n;
            }
        }
        (0..3).for_each(|i| past[i] += tokens[i]);
    }
    outs
}

/// The parts of `inputs`, one array for each sequence, that a step's rows take.
fn packed(inputs: &[Array; 3], rows: &[(usize, i32, i32)]) -> Array {
    let parts: Vec<Array> = rows.iter().map(|&(i, at, n)| inputs[i].slice(0, at, at + n)).collect();
    Array::concatenate(&parts, 0).contiguous()
}

fn sequences(seed: u64, width: i32) -> [Array; 3] {
    [0, 1, 2].map(|i| noise(seed + i, &[STEPS.iter().map(|step| step[i as usize]).sum(), width]))
}

/// `fused` and `portable` agree, and sequences together give the bits of each alone.
fn check_rows(run: impl Fn(bool, bool) -> Vec<Vec<Array>>, bound: f32) {
    let (together, alone, expected) = (run(true, true), run(true, false), run(false, true));
    for i in 0..3 {
        let [together, alone, expected] =
            [&together, &alone, &expected].map(|outs| Array::concatenate(&outs[i], 0));
        assert_eq!(bits(&together), bits(&alone), "sequence {i} alone");
        close(&together, &expected, bound);
    }
}

fn heads_of(gated: bool, normed: bool, softmax: Softmax) -> Heads {
    let rope = Rope { frequencies: vec![1.0, 0.3, 0.01], pairs: RopePairs::Halves, scale: 1.2 };
    let heads = Heads::new(4, 2, 16, rope).with_softmax(softmax);
    let heads = if normed { heads.with_norms(norm(31, 16), norm(32, 16)) } else { heads };
    if gated { heads.with_gates() } else { heads }
}

#[test]
fn attention_of_many_rows_is_that_of_each() {
    let plain = Softmax::scaled(0.25);
    let sinks = Softmax { sinks: Some(noise(16, &[4])), ..plain.clone() };
    for (gated, normed, softmax, window) in
        [(true, true, plain.clone(), None), (false, true, sinks, Some(7)), (false, false, plain, None)]
    {
        let heads = heads_of(gated, normed, softmax);
        let [q, k, v] = [sequences(1, if gated { 128 } else { 64 }), sequences(4, 32), sequences(7, 32)];
        let run = |fused: bool, together| {
            let buffers = RefCell::new([(); 3].map(|()| [KvBuffer::default(), KvBuffer::default()]));
            outputs(together, |rows| {
                let positions: Vec<i32> = rows.iter().flat_map(|&(_, at, n)| at..at + n).collect();
                let positions = Array::from_slice(&positions, &[positions.len() as i32]);
                let qkv = [&q, &k, &v].map(|inputs| packed(inputs, rows));
                let mut buffers = buffers.borrow_mut();
                let mut rows: Vec<KvRow> = buffers
                    .iter_mut()
                    .enumerate()
                    .filter_map(|(i, [keys, values])| {
                        let &(_, past, tokens) = rows.iter().find(|(row, ..)| *row == i)?;
                        Some(KvRow { tokens, past, window, keys, values })
                    })
                    .collect();
                match fused {
                    true => attend_heads(qkv.each_ref(), &positions, &mut rows, &heads),
                    false => portable::attend_heads(qkv.each_ref(), &positions, &mut rows, &heads),
                }
            })
        };
        check_rows(run, 1e-4);
    }
}

fn delta() -> DeltaNet {
    let heads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 16 };
    let weights = DeltaWeights {
        conv1d: noise(41, &[192, 4]) * 0.3,
        neg_exp_a: -noise(42, &[4]).exp(),
        dt_bias: noise(43, &[4]),
        norms: [RmsNorm::l2(32, 1e-6, 0.2), RmsNorm::l2(32, 1e-6, 1.0)],
    };
    DeltaNet::new(heads, weights)
}

#[test]
fn recurrences_of_many_rows_are_those_of_each() {
    let net = delta();
    let [qkv, b, a] = [sequences(1, 192), sequences(4, 4), sequences(7, 4)];
    let run = |fused: bool, together| {
        let pasts = RefCell::new([(); 3].map(|()| Recurrence::default()));
        outputs(together, |rows| {
            let [qkv, b, a] = [&qkv, &b, &a].map(|inputs| packed(inputs, rows));
            let mut pasts = pasts.borrow_mut();
            let mut rows: Vec<DeltaRow> = pasts
                .iter_mut()
                .enumerate()
                .filter_map(|(i, past)| {
                    let &(_, _, tokens) = rows.iter().find(|(row, ..)| *row == i)?;
                    Some(DeltaRow { tokens, ahead: 0, past })
                })
                .collect();
            match fused {
                true => delta_net(&qkv, &b, &a, &mut rows, &net),
                false => portable::delta_net(&qkv, &b, &a, &mut rows, &net),
            }
        })
    };
    check_rows(run, 2e-3);
}

#[test]
fn a_state_that_somebody_holds_is_not_overwritten() {
    let net = delta();
    let mut past = Recurrence::default();
    let step = |seed: u64, past: &mut Recurrence| {
        let [qkv, b, a] = [noise(seed, &[3, 192]), noise(seed + 1, &[3, 4]), noise(seed + 2, &[3, 4])];
        let out = delta_net(&qkv, &b, &a, &mut [DeltaRow { tokens: 3, ahead: 0, past }], &net);
        eval([&out]).expect("evaluates");
    };
    let state = |past: &Recurrence| bits(past.arrays()[1].expect("a state"));
    step(1, &mut past);
    let held = past.clone();
    let before = state(&held);
    step(5, &mut past);
    assert_eq!(state(&held), before);
    assert_ne!(state(&past), before);
    let kept = past.settled();
    let before = state(&kept);
    step(9, &mut past);
    assert_eq!(state(&kept), before, "a settled one is somebody too");
}

/// Bits of what a recurrence holds once it is settled.
fn settled(past: &Recurrence) -> Vec<u32> {
    past.settled().arrays().into_iter().flatten().flat_map(bits).collect()
}

#[test]
fn tokens_ahead_that_are_kept_are_as_if_they_had_come_one_by_one() {
    let net = delta();
    let [qkv, b, a] = [noise(1, &[60, 192]), noise(2, &[60, 4]), noise(3, &[60, 4])];
    let run = |fused: bool, past: &mut Recurrence, from: i32, to: i32, ahead: i32| {
        let [qkv, b, a] = [&qkv, &b, &a].map(|x| x.slice(0, from, to).contiguous());
        let rows = &mut [DeltaRow { tokens: to - from, ahead, past }];
        let out = match fused {
            true => delta_net(&qkv, &b, &a, rows, &net),
            false => portable::delta_net(&qkv, &b, &a, rows, &net),
        };
        bits(&out)
    };
    for fused in [true, false] {
        let mut plain = Recurrence::default();
        let one_by_one: Vec<(Vec<u32>, Vec<u32>)> =
            (0..60).map(|t| (run(fused, &mut plain, t, t + 1, 0), settled(&plain))).collect();
        let mut past = Recurrence::default();
        let mut at = 0;
        // Certain tokens, tokens ahead, and how many of those are forgotten.
        let rounds = [
            (5, 0, 0),
            (1, 4, 4),
            (1, 4, 0),
            (1, 6, 3),
            (1, 5, 0),
            (1, 4, 0),
            (2, 4, 1),
            (2, 1, 1),
            (1, 0, 0),
            (1, 8, 2),
            (1, 0, 0),
            (3, 2, 0),
        ];
        for (certain, ahead, forgotten) in rounds {
            let out = run(fused, &mut past, at, at + certain + ahead, ahead);
            let expected: Vec<u32> = one_by_one[at as usize..(at + certain + ahead) as usize]
                .iter()
                .flat_map(|(out, _)| out)
                .copied()
                .collect();
            assert!(out == expected, "outputs at {at}");
            past.forget(forgotten);
            at += certain + ahead - forgotten;
            assert!(settled(&past) == one_by_one[at as usize - 1].1, "state behind {at}");
            // Looking changes nothing.
            assert!(settled(&past) == one_by_one[at as usize - 1].1, "state behind {at}");
        }
    }
}
