//! The recurrence of all rows of a batch as one operation.

use std::{slice, sync::Arc};

use kernels::{ConvActivation, DeltaShape};

use super::{
    like,
    parts::{NormParts, by_parts, columns, for_each_row, numbers, write_wide},
};
use crate::{
    Array, Input, Output,
    delta::{DeltaHeads, DeltaNet, DeltaRow},
    kernel::apply_many,
};

/// What kernels need of a [`DeltaNet`].
pub(crate) struct DeltaParts {
    heads: DeltaHeads,
    /// `[channels, width]`.
    conv1d: Vec<f32>,
    neg_exp_a: Vec<f32>,
    dt_bias: Vec<f32>,
    norms: [Arc<NormParts>; 2],
}

/// A row's tokens, and whether its old state comes in the memory of the new one.
struct Span {
    start: usize,
    tokens: usize,
    in_place: bool,
}

/// The inputs before the rows' own.
const QKV: usize = 0;
const B: usize = 1;
const A: usize = 2;
const PASTS: usize = 3;

/// See [`delta::delta_net`](crate::delta::delta_net).
#[track_caller]
pub(crate) fn delta_net(qkv: &Array, b: &Array, a: &Array, rows: &mut [DeltaRow], net: &DeltaNet) -> Array {
    let heads = net.heads;
    let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
    assert_eq!(qkv.shape(), [tokens, 2 * heads.keys() + heads.values()], "queries, keys and values");
    assert_eq!((b.shape(), a.shape()), (&[tokens, heads.value_heads][..], &[tokens, heads.value_heads][..]));
    by_parts(rows, |row| row.tokens, |start, rows| some_rows([qkv, b, a], start, rows, net))
}

/// [`delta_net`] of some rows, whose tokens begin at `start`.
#[track_caller]
fn some_rows([qkv, b, a]: [&Array; 3], start: i32, rows: &mut [DeltaRow], net: &DeltaNet) -> Array {
    let (parts, heads) = (net.parts(), net.heads);
    let width = net.weights.conv1d.dim(1);
    let shape = [1, heads.value_heads, heads.value_dim, heads.key_dim];
    let (mut pasts, mut spans) = (vec![], vec![]);
    let mut end = start as usize;
    for row in rows.iter_mut() {
        let (state, in_place) = row.state.take(&shape);
        pasts.extend([row.take_conv(width, qkv), state]);
        spans.push(Span { start: end, tokens: row.tokens as usize, in_place });
        end += row.tokens as usize;
    }
    let mut inputs = vec![qkv, b, a];
    inputs.extend(&pasts);
    let mut outputs = vec![like(qkv, vec![end as i32 - start, heads.values()])];
    outputs.extend(pasts.iter().map(|past| like(past, past.shape().to_vec())));
    let shared: Vec<(usize, usize)> = spans
        .iter()
        .enumerate()
        .filter(|(_, row)| row.in_place)
        .map(|(i, _)| (2 + 2 * i, PASTS + 1 + 2 * i))
        .collect();
    let results = apply_many("delta_net", &inputs, &outputs, &shared, move |inputs, outputs| {
        parts.run(&spans, inputs, outputs);
    });
    let mut results = results.into_iter();
    let out = results.next().unwrap_or_else(|| unreachable!("the first output"));
    for row in rows {
        *row.conv = results.next();
        row.state.put(results.next().unwrap_or_else(|| unreachable!("a state for each row")));
    }
    out
}

/// A row on its way through the kernels.
struct Row<'a, 'p, 'n> {
    span: &'a Span,
    past: &'a [Input<'p>],
    next: &'a mut [Output<'n>],
    out: &'a mut [f32],
}

impl DeltaParts {
    #[track_caller]
    pub fn of(net: &DeltaNet) -> DeltaParts {
        let weights = &net.weights;
        DeltaParts {
            heads: net.heads,
            conv1d: numbers(&weights.conv1d),
            neg_exp_a: numbers(&weights.neg_exp_a),
            dt_bias: numbers(&weights.dt_bias),
            norms: weights.norms.each_ref().map(|norm| norm.parts()),
        }
    }

    fn run(&self, spans: &[Span], inputs: &[Input], outputs: &mut [Output]) {
        let [out, nexts @ ..] = outputs else { unreachable!("an output") };
        let (channels, gates) = (self.channels(), self.heads.value_heads as usize);
        let [qkv, b, a] = [QKV, B, A].map(|i| inputs[i].wide());
        write_wide(slice::from_mut(out), |out| {
            let mut rest = &mut *out[0];
            let mut rows = vec![];
            for ((span, past), next) in
                spans.iter().zip(inputs[PASTS..].chunks_exact(2)).zip(nexts.chunks_exact_mut(2))
            {
                let out;
                (out, rest) = rest.split_at_mut(span.tokens * self.heads.values() as usize);
                rows.push(Row { span, past, next, out });
            }
            let tokens: usize = spans.iter().map(|span| span.tokens).sum();
            let work = tokens * (self.heads.values() * self.heads.key_dim) as usize * 4;
            for_each_row(
                &mut rows,
                |row| row.span.tokens,
                work,
                |row| {
                    let Span { start, tokens, in_place } = *row.span;
                    let of = |width: usize| start * width..(start + tokens) * width;
                    let [conv, state] = row.next else { unreachable!("two of a row") };
                    let mixed = self.convolve(&qkv[of(channels)], &row.past[0], conv);
                    let state: &mut [f32] = state.values();
                    if !in_place {
                        state.copy_from_slice(row.past[1].values());
                    }
                    self.recur(tokens, &mixed, &b[of(gates)], &a[of(gates)], state, row.out);
                },
            );
        });
    }

    fn channels(&self) -> usize {
        (2 * self.heads.keys() + self.heads.values()) as usize
    }

    /// A row's inputs after convolution and SiLU; `next` receives the last of them.
    fn convolve(&self, x: &[f32], past: &Input, next: &mut Output) -> Vec<f32> {
        let mut mixed = vec![0.0; x.len()];
        write_wide(slice::from_mut(next), |next| {
            let (past, channels) = (past.wide(), self.channels());
            let silu = ConvActivation::Silu;
            kernels::causal_conv(x, &self.conv1d, &past, &mut mixed, next[0], channels, silu);
        });
        mixed
    }

    /// A row's tokens through norms, gates and delta rule.
    fn recur(&self, tokens: usize, mixed: &[f32], b: &[f32], a: &[f32], state: &mut [f32], out: &mut [f32]) {
        let (keys, channels) = (self.heads.keys() as usize, self.channels());
        let part = |from: usize, to: usize| columns(mixed, channels, from..to);
        let [q_norm, k_norm] = &self.norms;
        let (q, k) = (q_norm.apply(&part(0, keys)), k_norm.apply(&part(keys, 2 * keys)));
        let v = part(2 * keys, channels);
        let (mut g, mut beta) = (vec![0.0; a.len()], vec![0.0; b.len()]);
        kernels::delta_gates([a, b], &self.neg_exp_a, &self.dt_bias, &mut g, &mut beta);
        kernels::gated_delta(self.shape(tokens), [&q, &k, &v], &g, &beta, state, out);
    }

    fn shape(&self, tokens: usize) -> DeltaShape {
        DeltaShape {
            tokens,
            key_heads: self.heads.key_heads as usize,
            value_heads: self.heads.value_heads as usize,
            key_dim: self.heads.key_dim as usize,
            value_dim: self.heads.value_dim as usize,
        }
    }
}
