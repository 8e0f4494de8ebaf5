//! Pieces of a layer, made of the smaller operations.

use kernels::Activation;

use super::{gated, rms_norm, rope};
use crate::{
    Array, Dtype, Linear, RmsNorm,
    delta::{DeltaNet, DeltaRow},
    fast::Onto,
    heads::{Heads, KvRow},
    kv::attend_mlx,
};

#[track_caller]
pub fn project(x: &Array, norm: Option<&RmsNorm>, linears: &[&Linear]) -> Vec<Array> {
    let x = normed(x, norm);
    linears.iter().map(|layer| linear(&x, layer)).collect()
}

#[track_caller]
pub fn add_projected(onto: Onto, x: &Array, layer: &Linear) -> Array {
    add(onto, linear(x, layer))
}

#[track_caller]
pub fn add_gated_norm(onto: Onto, x: &Array, gate: &Array, norm: &RmsNorm, layer: &Linear) -> Array {
    let per_head = x.reshape(&[x.dim(0), -1, norm.weight.dim(0)]);
    let normed = rms_norm(&per_head, &norm.weight, norm.eps).reshape(x.shape());
    add(onto, linear(&gated(gate, &normed, Activation::Silu), layer))
}

#[track_caller]
pub fn feed_forward(
    x: &Array,
    norm: Option<&RmsNorm>,
    [gate, up, down]: [&Linear; 3],
    activation: Activation,
    onto: Option<Onto>,
) -> Array {
    let x = normed(x, norm);
    let out = linear(&gated(&linear(&x, gate), &linear(&x, up), activation), down);
    match onto {
        Some(onto) => add(onto, out),
        None => out,
    }
}

#[track_caller]
pub fn attend_heads([q, k, v]: [&Array; 3], positions: &Array, rows: &mut [KvRow], heads: &Heads) -> Array {
    let dim = heads.head_dim;
    let split = |x: &Array, heads| x.reshape(&[-1, heads, dim]);
    let (q, gate) = match heads.gated {
        true => {
            let both = q.reshape(&[-1, heads.heads, 2 * dim]);
            (both.slice(-1, 0, dim), Some(both.slice(-1, dim, 2 * dim)))
        }
        false => (split(q, heads.heads), None),
    };
    let (k, v) = (split(k, heads.kv_heads), split(v, heads.kv_heads));
    let [q, k] = match &heads.norms {
        Some([q_norm, k_norm]) => [normed(&q, Some(q_norm)), normed(&k, Some(k_norm))],
        None => [q, k],
    };
    let [q, k] = [q, k].map(|x| rope(&x, positions, &heads.rope));
    let outs = per_row(
        rows,
        |row| row.tokens,
        [&q, &k, &v],
        |row, [q, k, v]| attend_mlx(&q, [&k, &v], row.keys, row.values, row.past, row.window, &heads.softmax),
    );
    let out = match gate {
        Some(gate) => outs * gate.sigmoid(),
        None => outs,
    };
    out.reshape(&[out.dim(0), -1])
}

#[track_caller]
pub fn delta_net(qkv: &Array, b: &Array, a: &Array, rows: &mut [DeltaRow], net: &DeltaNet) -> Array {
    let (heads, weights) = (net.heads, &net.weights);
    let dt = a.astype(Dtype::Float32) + &weights.dt_bias;
    let g = (dt.softplus() * &weights.neg_exp_a).exp();
    per_row(
        rows,
        |row| row.tokens,
        [qkv, &g, &b.sigmoid()],
        |row, [qkv, g, beta]| {
            let qkv = row.past.causal_conv(&qkv, row.ahead, &weights.conv1d, true);
            let parts = qkv.split(-1, &[heads.keys(), heads.keys(), heads.values()]);
            let keys = |x: &Array| x.reshape(&[1, -1, heads.key_heads, heads.key_dim]);
            let [q_norm, k_norm] = &weights.norms;
            let (q, k) = (normed(&keys(&parts[0]), Some(q_norm)), normed(&keys(&parts[1]), Some(k_norm)));
            let v = parts[2].reshape(&[1, -1, heads.value_heads, heads.value_dim]);
            let [g, beta] = [g, beta].map(|x| x.reshape(&[1, -1, heads.value_heads]));
            let out = row.past.gated_delta([&q, &k, &v], row.ahead, &g, &beta);
            out.reshape(&[-1, heads.values()])
        },
    )
}

/// Calls `step` with each row and its part of the inputs, and lines up what comes back.
#[track_caller]
fn per_row<R, const N: usize>(
    rows: &mut [R],
    tokens: impl Fn(&R) -> i32,
    inputs: [&Array; N],
    mut step: impl FnMut(&mut R, [Array; N]) -> Array,
) -> Array {
    let mut start = 0;
    let mut outs = vec![];
    for row in rows {
        let end = start + tokens(row);
        outs.push(step(row, inputs.map(|x| x.slice(0, start, end))));
        start = end;
    }
    Array::concatenate(&outs, 0)
}

#[track_caller]
fn normed(x: &Array, norm: Option<&RmsNorm>) -> Array {
    norm.map_or_else(|| x.clone(), |norm| rms_norm(x, &norm.weight, norm.eps))
}

#[track_caller]
fn linear(x: &Array, layer: &Linear) -> Array {
    let out = layer.weight.matmul_mlx(x);
    match &layer.bias {
        Some(bias) => out + bias.astype(x.dtype()),
        None => out,
    }
}

#[track_caller]
fn add(onto: Onto, out: Array) -> Array {
    onto.stream + normed(&out, onto.after)
}
