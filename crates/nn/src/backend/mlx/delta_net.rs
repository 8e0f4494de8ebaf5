//! Gated DeltaNet of a batch.

use mlx::{Array, Dtype, fast};

use super::{batch::for_each_row, norm::normed};
use crate::{DeltaNet, DeltaRow};

#[track_caller]
pub(crate) fn delta_net(net: &DeltaNet, qkv: &Array, [b, a]: [&Array; 2], rows: &mut [DeltaRow]) -> Array {
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

#[track_caller]
pub(crate) fn gated_delta([q, k, v]: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
    let (out, state) = fast::gated_delta_update([q, k, v], g, beta, state);
    (out.astype(v.dtype()), state)
}
