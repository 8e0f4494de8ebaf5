//! Fused operations of the CPU back end against the MLX back end.

use std::cell::RefCell;

use mlx::{
    Array, Dtype, eval,
    quant::{Mode, Quantization},
};

use super::{bits, close, formats, noise};
use crate::{
    Activation, CoreAttention, DeltaHeads, DeltaNet, DeltaRow, DeltaWeights, KvBuffer, KvRow, Linear, Matrix,
    Precision, Recurrence, RmsNorm, Rope, RopePairs, Softmax,
    backend::{mlx as reference, on_backend},
    linear::project,
    quantize,
    residual::ResidualAdd,
    set_kv_cache_dtype, set_precision,
    storage::WeightStorage,
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
        move |q| Linear::new(Matrix::Quantized(quantize(&weight, q)), None)
    });
    let bias = Some(noise(22, &[outputs]).astype(Dtype::Bfloat16));
    let half = Matrix::Dense(weight.astype(Dtype::Float16));
    [Linear::new(Matrix::Dense(weight), bias), Linear::new(half, None)].into_iter().chain(quantized)
}

#[test]
fn project_with_shared_norm_agrees_with_mlx() {
    // MLX does not round factors.
    set_precision(Precision::Float32);
    let (x, norm, other) = (noise(1, &[5, HIDDEN]), norm(2, HIDDEN), dense(3, 24, HIDDEN));
    for layer in layers(48, HIDDEN) {
        for norm in [Some(&norm), None] {
            let got = project(&x, norm, [&layer, &other]);
            let expected = reference::project(&x, norm, &[&layer, &other]);
            got.iter().zip(&expected).for_each(|(got, expected)| close(got, expected, 1e-3));
        }
        close(&layer.forward(&x), &reference::project(&x, None, &[&layer])[0], 1e-3);
    }
}

#[test]
fn linear_rows_are_those_of_the_matrix() {
    let indices = Array::from_slice(&[47u32, 0, 7, 7], &[4]);
    for layer in layers(48, 256) {
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let (got, expected) = (
                layer.rows(&indices, Some(dtype)),
                layer.weight.plain().rows(&indices, Some(Dtype::Float32)),
            );
            // MLX rounds scales to the requested type, our kernels the result.
            assert_eq!(got.dtype(), dtype);
            match dtype {
                Dtype::Float32 => assert_eq!(bits(&got), bits(&expected)),
                _ => close(&got, &expected, 0.02),
            }
        }
    }
}

#[test]
fn prepacked_linear_gives_the_same_bits() {
    let (x, indices) = (noise(1, &[5, HIDDEN]), Array::from_slice(&[47u32, 0, 7], &[3]));
    let mut prepacked = 0;
    for bits in [2, 3, 4, 8] {
        let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits };
        for outputs in [48, 40] {
            let of =
                || Matrix::Quantized(quantize(&(noise(bits as u64, &[outputs, HIDDEN]) * 0.2), quantization));
            let (plain, other) = (Linear::new(of(), None), Linear::prepacked(of(), None).unwrap());
            prepacked += usize::from(matches!(other.weight, WeightStorage::Prepacked(_)));
            let norm = norm(2, HIDDEN);
            for x in [&x, &x.slice(0, 1, 2), &x.astype(Dtype::Bfloat16)] {
                let [got] = project(x, Some(&norm), [&other]);
                let [expected] = project(x, Some(&norm), [&plain]);
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
    assert_eq!(prepacked, 3, "2, 4 and 8 bits, whole blocks of rows");
    set_precision(Precision::Float32);
    let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits: 4 };
    let matrix = Matrix::Quantized(quantize(&noise(3, &[48, HIDDEN]), quantization));
    assert!(
        matches!(Linear::prepacked(matrix, None).unwrap().weight, WeightStorage::Plain(_)),
        "not in float32"
    );
}

#[test]
fn unrounded_linear_gives_float32_bits_in_every_precision() {
    let (x, pre_norm) = (noise(1, &[5, HIDDEN]), norm(2, HIDDEN));
    let weight = noise(21, &[48, HIDDEN]) * 0.2;
    let small = formats().into_iter().filter(|q| HIDDEN % q.group_size == 0);
    let quantized = small.map(|q| Matrix::Quantized(quantize(&weight, q)));
    for matrix in quantized.chain([Matrix::Dense(weight.astype(Dtype::Bfloat16))]) {
        let copy = || match &matrix {
            Matrix::Dense(weight) => Matrix::Dense(weight.clone()),
            Matrix::Quantized(weight) => Matrix::Quantized(weight.clone()),
        };
        let of = || Linear::new(copy(), None);
        set_precision(Precision::Float32);
        let [expected] = project(&x, Some(&pre_norm), [&of()]).map(|out| bits(&out));
        for precision in [Precision::Rounded, Precision::Int8] {
            set_precision(precision);
            let unrounded = Linear::unrounded(copy(), None).unwrap();
            let [alone] = project(&x, Some(&pre_norm), [&of()]).map(|out| bits(&out));
            assert_ne!(alone, expected, "{precision:?} rounds");
            let [rounded, got] = project(&x, Some(&pre_norm), [&of(), &unrounded]).map(|out| bits(&out));
            assert_eq!((rounded, got), (alone, expected.clone()), "{precision:?}");
        }
    }
}

#[test]
fn add_projected_with_post_norm_agrees_with_mlx() {
    // MLX does not round factors.
    set_precision(Precision::Float32);
    let (stream, x, gate) = (noise(1, &[5, HIDDEN]), noise(2, &[5, INNER]), noise(3, &[5, INNER]));
    let (per_head, post_norm) = (norm(4, INNER / 4), norm(5, HIDDEN));
    for layer in layers(HIDDEN, INNER) {
        for post_norm in [None, Some(&post_norm)] {
            let add = ResidualAdd { stream: &stream, post_norm };
            let got = on_backend!(add_projected(add, &x, &layer));
            let expected = reference::add_projected(add, &x, &layer);
            close(&got, &expected, 2e-3);
            let got = on_backend!(add_gated_norm(add, &x, &gate, &per_head, &layer));
            let expected = reference::add_gated_norm(add, &x, &gate, &per_head, &layer);
            close(&got, &expected, 2e-3);
        }
    }
}

#[test]
fn feed_forward_agrees_with_mlx_and_rounds_only_its_output() {
    let (x, pre_norm, post_norm) = (noise(1, &[5, HIDDEN]), norm(2, HIDDEN), norm(3, HIDDEN));
    let block = [dense(4, INNER, HIDDEN), dense(5, INNER, HIDDEN), dense(6, HIDDEN, INNER)];
    let [plain, normed] =
        [None, Some(&post_norm)].map(|post_norm| Some(ResidualAdd { stream: &x, post_norm }));
    for add in [None, plain, normed] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let linears = || block.each_ref();
            let run =
                |x: &Array, add| on_backend!(feed_forward(x, Some(&pre_norm), linears(), activation, add));
            let expected = reference::feed_forward(&x, Some(&pre_norm), linears(), activation, add);
            close(&run(&x, add), &expected, 2e-3);
            let half = x.astype(Dtype::Bfloat16);
            let wide = half.astype(Dtype::Float32);
            let on = |stream| add.map(|add| ResidualAdd { stream, ..add });
            let got = run(&half, on(&half));
            assert_eq!(got.dtype(), Dtype::Bfloat16);
            assert_eq!(bits(&got), bits(&run(&wide, on(&wide)).astype(Dtype::Bfloat16)));
        }
    }
}

/// Tokens of each of three sequences in each of three steps.
const STEPS: [[i32; 3]; 3] = [[3, 0, 300], [1, 5, 1], [1, 1, 2]];

/// The outputs of each sequence from `step`, which is called with the rows of a step (sequence, its
/// first token, tokens): all sequences together or one after another.
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

/// The inputs of a step's rows, cut out of `inputs`, one array for each sequence.
fn packed(inputs: &[Array; 3], rows: &[(usize, i32, i32)]) -> Array {
    let parts: Vec<Array> = rows.iter().map(|&(i, at, n)| inputs[i].slice(0, at, at + n)).collect();
    Array::concatenate(&parts, 0).contiguous()
}

fn sequences(seed: u64, width: i32) -> [Array; 3] {
    [0, 1, 2].map(|i| noise(seed + i, &[STEPS.iter().map(|step| step[i as usize]).sum(), width]))
}

/// `run(cpu, together)` agrees between back ends, and sequences together give the bits of each
/// alone.
fn check_rows(run: impl Fn(bool, bool) -> Vec<Vec<Array>>, bound: f32) {
    let (together, alone, expected) = (run(true, true), run(true, false), run(false, true));
    for i in 0..3 {
        let [together, alone, expected] =
            [&together, &alone, &expected].map(|outs| Array::concatenate(&outs[i], 0));
        assert_eq!(bits(&together), bits(&alone), "sequence {i} alone");
        close(&together, &expected, bound);
    }
}

pub(super) fn core_attention(gated: bool, normed: bool, softmax: Softmax) -> CoreAttention {
    let rope = Rope { frequencies: vec![1.0, 0.3, 0.01], axes: vec![], pairs: RopePairs::Halves, scale: 1.2 };
    let attention = CoreAttention::new(4, 2, 16, rope).with_softmax(softmax);
    let attention = if normed { attention.with_qk_norm(norm(31, 16), norm(32, 16)) } else { attention };
    if gated { attention.with_output_gate() } else { attention }
}

#[test]
fn core_attention_of_a_batch_equals_single_rows() {
    let plain = Softmax::scaled(0.25);
    let sinks = Softmax { sinks: Some(noise(16, &[4])), ..plain.clone() };
    let cases =
        [(true, true, plain.clone(), None), (false, true, sinks, Some(7)), (false, false, plain, None)];
    let bounds = [(None, 1e-4), (Some(Dtype::Bfloat16), 0.1)];
    for ((gated, normed, softmax, window), (kv_cache, bound)) in
        cases.into_iter().flat_map(|case| bounds.map(|bound| (case.clone(), bound)))
    {
        set_kv_cache_dtype(kv_cache);
        let attention = core_attention(gated, normed, softmax);
        let [q, k, v] = [sequences(1, if gated { 128 } else { 64 }), sequences(4, 32), sequences(7, 32)];
        let run = |cpu: bool, together| {
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
                        Some(KvRow { tokens, past, window, images: &[], keys, values })
                    })
                    .collect();
                match cpu {
                    true => attention.forward(qkv.each_ref(), &positions, &mut rows),
                    false => reference::core_attention(&attention, qkv.each_ref(), &positions, &mut rows),
                }
            })
        };
        check_rows(run, bound);
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
fn delta_net_of_a_batch_equals_single_rows() {
    let net = delta();
    let [qkv, b, a] = [sequences(1, 192), sequences(4, 4), sequences(7, 4)];
    let run = |cpu: bool, together| {
        let states = RefCell::new([(); 3].map(|()| Recurrence::default()));
        outputs(together, |rows| {
            let [qkv, b, a] = [&qkv, &b, &a].map(|inputs| packed(inputs, rows));
            let mut states = states.borrow_mut();
            let mut rows: Vec<DeltaRow> = states
                .iter_mut()
                .enumerate()
                .filter_map(|(i, state)| {
                    let &(_, _, tokens) = rows.iter().find(|(row, ..)| *row == i)?;
                    Some(DeltaRow { tokens, num_draft: 0, state })
                })
                .collect();
            match cpu {
                true => net.forward(&qkv, &b, &a, &mut rows),
                false => reference::delta_net(&net, &qkv, [&b, &a], &mut rows),
            }
        })
    };
    check_rows(run, 2e-3);
}

#[test]
fn shared_recurrent_state_is_not_overwritten() {
    let net = delta();
    let mut recurrence = Recurrence::default();
    let step = |seed: u64, state: &mut Recurrence| {
        let [qkv, b, a] = [noise(seed, &[3, 192]), noise(seed + 1, &[3, 4]), noise(seed + 2, &[3, 4])];
        let out = net.forward(&qkv, &b, &a, &mut [DeltaRow { tokens: 3, num_draft: 0, state }]);
        eval([&out]).expect("evaluates");
    };
    let state = |recurrence: &Recurrence| bits(recurrence.arrays()[1].expect("a state"));
    step(1, &mut recurrence);
    let clone = recurrence.clone();
    let before = state(&clone);
    step(5, &mut recurrence);
    assert_eq!(state(&clone), before);
    assert_ne!(state(&recurrence), before);
    let committed = recurrence.committed();
    let before = state(&committed);
    step(9, &mut recurrence);
    assert_eq!(state(&committed), before, "a committed copy shares the state too");
}

/// Bits of the committed state.
fn committed(recurrence: &Recurrence) -> Vec<u32> {
    recurrence.committed().arrays().into_iter().flatten().flat_map(bits).collect()
}

#[test]
fn accepted_draft_tokens_leave_the_state_of_single_steps() {
    let net = delta();
    let [qkv, b, a] = [noise(1, &[60, 192]), noise(2, &[60, 4]), noise(3, &[60, 4])];
    let run = |cpu: bool, state: &mut Recurrence, from: i32, to: i32, num_draft: i32| {
        let [qkv, b, a] = [&qkv, &b, &a].map(|x| x.slice(0, from, to).contiguous());
        let rows = &mut [DeltaRow { tokens: to - from, num_draft, state }];
        let out = match cpu {
            true => net.forward(&qkv, &b, &a, rows),
            false => reference::delta_net(&net, &qkv, [&b, &a], rows),
        };
        bits(&out)
    };
    for cpu in [true, false] {
        let mut plain = Recurrence::default();
        let single: Vec<(Vec<u32>, Vec<u32>)> =
            (0..60).map(|t| (run(cpu, &mut plain, t, t + 1, 0), committed(&plain))).collect();
        let mut recurrence = Recurrence::default();
        let mut at = 0;
        // Plain tokens, draft tokens, and how many of those are rejected.
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
        for (tokens, num_draft, rejected) in rounds {
            let end = at + tokens + num_draft;
            let out = run(cpu, &mut recurrence, at, end, num_draft);
            let expected: Vec<u32> =
                single[at as usize..end as usize].iter().flat_map(|(out, _)| out).copied().collect();
            assert!(out == expected, "outputs at {at}");
            recurrence.rewind(rejected);
            at = end - rejected;
            assert!(committed(&recurrence) == single[at as usize - 1].1, "state after {at}");
            assert!(committed(&recurrence) == single[at as usize - 1].1, "state after {at}, read again");
        }
    }
}
