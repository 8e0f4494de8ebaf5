//! Gated DeltaNet of a batch.

use mlx::{Array, Dtype, fast};

use super::{
    batch::for_each_row,
    metal::{self, DeltaInputs},
    norm::normed,
    row_calls,
};
use crate::{DeltaNet, DeltaRow};

#[track_caller]
pub(crate) fn delta_net(net: &DeltaNet, qkv: &Array, [b, a]: [&Array; 2], rows: &mut [DeltaRow]) -> Array {
    if metal::has_delta_inputs(net, qkv, [b, a]) {
        return on_metal(net, qkv, [b, a], rows);
    }
    let (heads, weights) = (net.heads, &net.weights);
    let dt = a.astype(Dtype::Float32) + &weights.dt_bias;
    let g = (dt.softplus() * &weights.neg_exp_a).exp();
    let step = |row: &mut DeltaRow, [qkv, g, beta]: [Array; 3]| {
        let qkv = row.state.causal_conv(&qkv, row.num_draft, &weights.conv1d, true);
        let parts = qkv.split(-1, &[heads.key_width(), heads.key_width(), heads.value_width()]);
        let keys = |x: &Array| x.reshape(&[1, -1, heads.key_heads, heads.key_dim]);
        let [q_norm, k_norm] = &weights.norms;
        let (q, k) = (normed(&keys(&parts[0]), Some(q_norm)), normed(&keys(&parts[1]), Some(k_norm)));
        let v = parts[2].reshape(&[1, -1, heads.value_heads, heads.value_dim]);
        let [g, beta] = [g, beta].map(|x| x.reshape(&[1, -1, heads.value_heads]));
        let out = row.state.gated_delta([&q, &k, &v], row.num_draft, &g, &beta);
        out.reshape(&[-1, heads.value_width()])
    };
    for_each_row(rows, |row| row.tokens, [qkv, &g, &b.sigmoid()], step)
}

/// [`delta_net`] with our kernel in front of the delta rule, in float32 until its outputs are
/// rounded.
#[track_caller]
fn on_metal(net: &DeltaNet, qkv: &Array, gates: [&Array; 2], rows: &mut [DeltaRow]) -> Array {
    let width = net.weights.conv1d.dim(1);
    let step = |row: &mut DeltaRow, [x, b, a]: [Array; 3]| {
        let inputs = |past: &Array| metal::delta_inputs(net, &x, past, [&b, &a]);
        let DeltaInputs { qkv, decay, beta } = row.state.with_past_inputs(&x, row.num_draft, width, inputs);
        let out = row.state.gated_delta(qkv.each_ref(), row.num_draft, &decay, &beta);
        out.reshape(&[-1, net.heads.value_width()]).astype(x.dtype())
    };
    for_each_row(rows, |row| row.tokens, [qkv, gates[0], gates[1]], step)
}

#[track_caller]
pub(crate) fn gated_delta([q, k, v]: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
    if let Some(done) = metal::gated_delta([q, k, v], g, beta, state) {
        return done;
    }
    // More tokens are computed in chunks on GPUs, fewer one after another.
    const ONE_BY_ONE: i32 = 16;
    let tokens = k.dim(1);
    let in_parts = row_calls::is_needed() && (ONE_BY_ONE + 1..=row_calls::MOST_ROWS).contains(&tokens);
    if !in_parts {
        let (out, state) = fast::gated_delta_update([q, k, v], g, beta, state);
        return (out.astype(v.dtype()), state);
    }
    let (mut outs, mut last) = (vec![], state.clone());
    for start in (0..tokens).step_by(ONE_BY_ONE as usize) {
        let end = tokens.min(start + ONE_BY_ONE);
        let [q, k, v, g, beta] = [q, k, v, g, beta].map(|x| x.slice(1, start, end).contiguous());
        let (out, next) = fast::gated_delta_update([&q, &k, &v], &g, &beta, &last);
        outs.push(out.astype(v.dtype()));
        last = next;
    }
    (Array::concatenate(&outs, 1), last)
}
