//! Gated delta rule: what is in front of it, and the rule itself.

use kernels::{ConvActivation, DeltaShape, metal};
use mlx::{
    Array, Dtype, Result,
    metal::{Kernel, TemplateArg},
};

use super::{Prepared, bits_of, has_bits, is_available, is_trusted, random, spec};
use crate::{DeltaHeads, DeltaNet};

static INPUTS: Kernel = Kernel {
    name: "lanner_delta_inputs",
    inputs: "x past taps b a neg_exp_a dt_bias query_weight key_weight",
    outputs: "queries keys values decays betas next",
    header: metal::MATH,
    body: metal::DELTA_INPUTS,
};

static DELTA: Kernel = Kernel {
    name: "lanner_delta",
    inputs: "q k v g beta state",
    outputs: "out after",
    header: metal::MATH,
    body: metal::DELTA,
};

/// What a gated delta rule takes, in float32, as [`gated_delta`](crate::delta_net::gated_delta)
/// does.
pub(crate) struct DeltaInputs {
    pub qkv: [Array; 3],
    pub decay: Array,
    pub beta: Array,
}

/// Whether [`delta_inputs`] computes a layer's inputs of type `x`, with gates `b` and `a`.
#[track_caller]
pub(crate) fn has_delta_inputs(net: &DeltaNet, x: &Array, [b, a]: [&Array; 2]) -> bool {
    let DeltaHeads { key_dim, value_dim, value_heads, .. } = net.heads;
    let fits = key_dim % 16 == 0 && key_dim <= 256 && value_dim % 16 == 0 && value_heads > 0;
    let width = net.weights.conv1d.dim(1);
    if !is_available() || !fits || width < 2 || b.dtype() != a.dtype() {
        return false;
    }
    let weights = weights(net);
    let inputs = [&[x, x][..], &weights[..1], &[b, a], &weights[1..]].concat();
    is_trusted(&INPUTS, &template(net), &inputs, || check_inputs(net, x.dtype(), b.dtype()))
}

/// Convolution, norms and gates of a sequence's tokens `x` `[tokens, channels]`; `past` are the
/// inputs before them, and the last result those after them.
#[track_caller]
pub(crate) fn delta_inputs(
    net: &DeltaNet,
    x: &Array,
    past: &Array,
    [b, a]: [&Array; 2],
) -> (DeltaInputs, Array) {
    let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = net.heads;
    let tokens = x.dim(0);
    let keys = spec(&[1, tokens, key_heads, key_dim], Dtype::Float32);
    let gates = spec(&[1, tokens, value_heads], Dtype::Float32);
    let outputs = [
        keys.clone(),
        keys,
        spec(&[1, tokens, value_heads, value_dim], Dtype::Float32),
        gates.clone(),
        gates,
        spec(past.shape(), past.dtype()),
    ];
    let prepared = Prepared {
        kernel: &INPUTS,
        template: &template(net),
        outputs: &outputs,
        grid: [32, 2 * key_heads + value_heads, tokens],
        threadgroup: [32, 4, 1],
    };
    let weights = weights(net);
    let inputs = [&[x, past][..], &weights[..1], &[b, a], &weights[1..]].concat();
    let [q, k, v, decay, beta, next] = prepared.run(&inputs);
    (DeltaInputs { qkv: [q, k, v], decay, beta }, next)
}

fn weights(net: &DeltaNet) -> [&Array; 5] {
    let weights = &net.weights;
    let [q_norm, k_norm] = &weights.norms;
    [&weights.conv1d, &weights.neg_exp_a, &weights.dt_bias, &q_norm.weight, &k_norm.weight]
}

fn template(net: &DeltaNet) -> [(&'static str, TemplateArg); 7] {
    let [q_norm, k_norm] = &net.weights.norms;
    [
        ("KEY_HEADS", TemplateArg::Int(net.heads.key_heads)),
        ("VALUE_HEADS", TemplateArg::Int(net.heads.value_heads)),
        ("KEY_DIM", TemplateArg::Int(net.heads.key_dim)),
        ("VALUE_DIM", TemplateArg::Int(net.heads.value_dim)),
        ("WIDTH", TemplateArg::Int(net.weights.conv1d.dim(1))),
        ("QUERY_EPS", bits_of(q_norm.eps)),
        ("KEY_EPS", bits_of(k_norm.eps)),
    ]
}

/// One token, which keeps inputs before it, and several, also 8 and more: MLX passes fewer numbers
/// in another way.
fn check_inputs(net: &DeltaNet, dtype: Dtype, gates: Dtype) -> Result<bool> {
    let heads = &net.heads;
    let (channels, width) = (2 * heads.key_width() + heads.value_width(), net.weights.conv1d.dim(1));
    let mut agree = true;
    for tokens in [1, 7, 9] {
        let x = random(1, &[tokens, channels], dtype);
        let past = random(2, &[width - 1, channels], dtype);
        let [b, a] = [3, 4].map(|seed| random(seed, &[tokens, heads.value_heads], gates) * 3.0);
        let (got, next) = delta_inputs(net, &x, &past, [&b, &a]);
        let (expected, expected_next) = expected_inputs(net, [&x, &past, &b, &a])?;
        let [q, k, v] = &got.qkv;
        for (got, expected) in [q, k, v, &got.decay, &got.beta].into_iter().zip(expected) {
            agree &= has_bits(got, expected)?;
        }
        agree &= has_bits(&next, expected_next)?;
    }
    Ok(agree)
}

/// Queries, keys, values, decays and betas on the CPU, and the next inputs.
fn expected_inputs(net: &DeltaNet, inputs: [&Array; 4]) -> Result<([Vec<f32>; 5], Vec<f32>)> {
    let [x, past, b, a] = inputs.map(Array::to_f32);
    let (x, past, b, a) = (x?, past?, b?, a?);
    let (keys, values) = (net.heads.key_width() as usize, net.heads.value_width() as usize);
    let channels = 2 * keys + values;
    let taps = kernels::conv_taps(&net.weights.conv1d.to_f32()?, channels);
    let (mut mixed, mut next) = (vec![0.0; x.len()], vec![0.0; past.len()]);
    kernels::causal_conv(&x, &taps, &past, &mut mixed, &mut next, channels, ConvActivation::Silu);
    for (norm, from) in net.weights.norms.iter().zip([0, keys]) {
        let weight = norm.weight.to_f32()?;
        kernels::rms_norm_columns(&mut mixed, channels, from..from + keys, &weight, norm.eps);
    }
    let [mut decay, mut beta] = [vec![0.0; a.len()], vec![0.0; b.len()]];
    let (rate, bias) = (net.weights.neg_exp_a.to_f32()?, net.weights.dt_bias.to_f32()?);
    kernels::delta_gates([&a, &b], &rate, &bias, &mut decay, &mut beta);
    let part = |from: usize, width: usize| -> Vec<f32> {
        mixed.chunks_exact(channels).flat_map(|token| token[from..from + width].to_vec()).collect()
    };
    Ok(([part(0, keys), part(keys, keys), part(2 * keys, values), decay, beta], next))
}

/// See [`gated_delta`](crate::delta_net::gated_delta); `None` if MLX has to do it.
#[track_caller]
pub(crate) fn gated_delta(
    qkv: [&Array; 3],
    g: &Array,
    beta: &Array,
    state: &Array,
) -> Option<(Array, Array)> {
    let [q, k, v] = qkv;
    let rule = Rule {
        key_heads: k.dim(2),
        value_heads: v.dim(2),
        key_dim: k.dim(3),
        value_dim: v.dim(3),
        by_channel: g.ndim() == 4,
    };
    let fits = rule.key_dim % 16 == 0 && rule.key_dim <= 256 && rule.value_dim % (4 * ROWS) == 0;
    let floats = [g, beta, state].iter().all(|array| array.dtype() == Dtype::Float32);
    if !is_available() || !fits || !floats || k.dim(0) != 1 || k.dim(1) == 0 {
        return None;
    }
    let template = rule.template(v.dtype());
    let inputs = [q, k, v, g, beta, state];
    let trusted = is_trusted(&DELTA, &template, &inputs, || rule.check(v.dtype()));
    trusted.then(|| rule.run(inputs))
}

/// Rows of the state in each group of 8 lanes.
const ROWS: i32 = 2;

/// The sizes of a call.
struct Rule {
    key_heads: i32,
    value_heads: i32,
    key_dim: i32,
    value_dim: i32,
    by_channel: bool,
}

impl Rule {
    fn template(&self, dtype: Dtype) -> [(&'static str, TemplateArg); 7] {
        [
            ("T", TemplateArg::Type(dtype)),
            ("KEY_HEADS", TemplateArg::Int(self.key_heads)),
            ("VALUE_HEADS", TemplateArg::Int(self.value_heads)),
            ("KEY_DIM", TemplateArg::Int(self.key_dim)),
            ("VALUE_DIM", TemplateArg::Int(self.value_dim)),
            ("BY_CHANNEL", TemplateArg::Bool(self.by_channel)),
            ("ROWS", TemplateArg::Int(ROWS)),
        ]
    }

    #[track_caller]
    fn run(&self, inputs: [&Array; 6]) -> (Array, Array) {
        let [_, _, v, _, _, state] = inputs;
        let prepared = Prepared {
            kernel: &DELTA,
            template: &self.template(v.dtype()),
            outputs: &[spec(v.shape(), v.dtype()), spec(state.shape(), Dtype::Float32)],
            grid: [32, self.value_dim / (4 * ROWS), self.value_heads],
            threadgroup: [32, 4, 1],
        };
        let [out, after] = prepared.run(&inputs);
        (out, after)
    }

    fn check(&self, dtype: Dtype) -> Result<bool> {
        let Rule { key_heads, value_heads, key_dim, value_dim, by_channel } = *self;
        let tokens = 6;
        let keys = [1, tokens, key_heads, key_dim];
        let [q, k] = [1, 2].map(|seed| random(seed, &keys, dtype) * 0.1);
        let v = random(3, &[1, tokens, value_heads, value_dim], dtype);
        let gates = [1, tokens, value_heads];
        let channels = [1, tokens, value_heads, key_dim];
        let g = random(4, if by_channel { &channels } else { &gates }, Dtype::Float32).sigmoid();
        let beta = random(5, &gates, Dtype::Float32).sigmoid();
        let state = random(6, &[1, value_heads, value_dim, key_dim], Dtype::Float32);
        let shape = DeltaShape {
            tokens: tokens as usize,
            key_heads: key_heads as usize,
            value_heads: value_heads as usize,
            key_dim: key_dim as usize,
            value_dim: value_dim as usize,
        };
        let (got, after) = self.run([&q, &k, &v, &g, &beta, &state]);
        let [q, k, v] = [&q, &k, &v].map(Array::to_f32);
        let (q, k, v, mut state) = (q?, k?, v?, state.to_f32()?);
        let mut out = vec![0.0; v.len()];
        let (g, beta) = (g.to_f32()?, beta.to_f32()?);
        kernels::gated_delta::<f32>(shape, [&q, &k, &v], &g, &beta, &mut state, &mut out);
        Ok(has_bits(&got, out)? && has_bits(&after, state)?)
    }
}
