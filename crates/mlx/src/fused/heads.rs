//! Softmax attention of all rows of a batch as one operation.

use std::sync::Arc;

use kernels::{AttentionShape, RopePairs, with_scratch};

use super::{
    KernelSoftmax, like,
    parts::{Activations, NormParts, by_parts, for_each_row, with_normed},
};
use crate::{
    Array, Input, Output,
    heads::{Heads, KvRow},
    kernel::apply_many,
};

/// What kernels need of [`Heads`].
pub(crate) struct HeadsParts {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    frequencies: Vec<f32>,
    pairs: RopePairs,
    rope_scale: f32,
    norms: Option<[Arc<NormParts>; 2]>,
    softmax: KernelSoftmax,
    gated: bool,
}

/// A row's tokens, and where they go in its buffers.
struct Span {
    /// Among all rows.
    start: usize,
    tokens: usize,
    past: usize,
    capacity: usize,
    window: usize,
}

/// The inputs before the rows' buffers; sinks, if there are any, are the last of them.
const QUERIES: usize = 0;
const KEYS: usize = 1;
const VALUES: usize = 2;
const POSITIONS: usize = 3;
const SINKS: usize = 4;

/// See [`heads::attend_heads`](crate::heads::attend_heads).
#[track_caller]
pub(crate) fn attend_heads(
    [q, k, v]: [&Array; 3],
    positions: &Array,
    rows: &mut [KvRow],
    heads: &Heads,
) -> Array {
    heads.parts().check([q, k, v], positions, rows);
    by_parts(q, rows, |row| row.tokens, |start, rows| some_rows([q, k, v], positions, start, rows, heads))
}

/// [`attend_heads`] of some rows, whose tokens begin at `start`.
#[track_caller]
fn some_rows(
    [q, k, v]: [&Array; 3],
    positions: &Array,
    start: i32,
    rows: &mut [KvRow],
    heads: &Heads,
) -> Array {
    let parts = heads.parts();
    let buffers: Vec<Array> = rows.iter_mut().flat_map(|row| row.reserve(heads, k.dtype())).collect();
    let mut inputs = vec![q, k, v, positions];
    inputs.extend(&heads.softmax.sinks);
    let first = inputs.len();
    inputs.extend(&buffers);
    let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
    let mut outputs = vec![like(q, vec![tokens, heads.heads * heads.head_dim])];
    outputs.extend(buffers.iter().map(|buffer| like(buffer, buffer.shape().to_vec())));
    // The buffers come out again, updated in place.
    let shared: Vec<(usize, usize)> = (0..buffers.len()).map(|i| (1 + i, first + i)).collect();
    let mut spans: Vec<Span> = vec![];
    for (row, pair) in rows.iter().zip(buffers.chunks_exact(2)) {
        let start = spans.last().map_or(start as usize, |last| last.start + last.tokens);
        spans.push(Span::of(start, row, &pair[0]));
    }
    let results = apply_many(
        "attend_heads",
        &inputs,
        &outputs,
        &shared,
        move |inputs, outputs| super::dispatch!(inputs[QUERIES].dtype(), T => parts.run::<T>(&spans, inputs, outputs)),
    );
    let mut results = results.into_iter();
    let out = results.next().unwrap_or_else(|| unreachable!("the first output"));
    for row in rows {
        row.keys.refill(results.next());
        row.values.refill(results.next());
    }
    out
}

impl Span {
    fn of(start: usize, row: &KvRow, keys: &Array) -> Span {
        Span {
            start,
            tokens: row.tokens as usize,
            past: row.past as usize,
            capacity: keys.dim(1) as usize,
            window: row.window.map_or(usize::MAX, |window| window as usize),
        }
    }
}

/// A row on its way through the kernels.
struct Row<'a, 'b, T> {
    span: &'a Span,
    buffers: &'a mut [Output<'b>],
    out: &'a mut [T],
}

impl HeadsParts {
    #[track_caller]
    pub fn of(heads: &Heads) -> HeadsParts {
        HeadsParts {
            heads: heads.heads as usize,
            kv_heads: heads.kv_heads as usize,
            head_dim: heads.head_dim as usize,
            frequencies: heads.rope.frequencies.clone(),
            pairs: heads.rope.pairs,
            rope_scale: heads.rope.scale,
            norms: heads.norms.as_ref().map(|[q, k]| [q.parts(), k.parts()]),
            softmax: heads.softmax.kernel(),
            gated: heads.gated,
        }
    }

    #[track_caller]
    fn check(&self, [q, k, v]: [&Array; 3], positions: &Array, rows: &[KvRow]) {
        let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
        let shape = |heads: usize, dim: usize| [tokens, (heads * dim) as i32];
        let width = if self.gated { 2 * self.head_dim } else { self.head_dim };
        assert_eq!(q.shape(), shape(self.heads, width), "queries");
        assert_eq!(k.shape(), shape(self.kv_heads, self.head_dim), "keys");
        assert_eq!(v.shape(), k.shape(), "values");
        assert_eq!(positions.shape(), [tokens], "positions");
        assert!(k.dtype() == q.dtype() && v.dtype() == q.dtype(), "queries, keys and values of one type");
    }

    fn run<T: Activations>(&self, spans: &[Span], inputs: &[Input], outputs: &mut [Output]) {
        let [out, buffers @ ..] = outputs else { unreachable!("an output") };
        let sinks = inputs.get(SINKS).filter(|_| inputs.len() > SINKS + buffers.len());
        let softmax = self.softmax.with(sinks);
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return };
        let tokens = first.start..last.start + last.tokens;
        let part = |width: usize| tokens.start * width..tokens.end * width;
        let [q_norm, k_norm] = self.norms.as_ref().map_or([None, None], |[q, k]| [Some(&**q), Some(&**k)]);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let positions = &inputs[POSITIONS].values()[tokens.clone()];
        let (width, stride) = match self.gated {
            true => (2 * queries, 2 * self.head_dim),
            false => (queries, self.head_dim),
        };
        let (all_q, all_k) = (inputs[QUERIES].wide(), inputs[KEYS].wide());
        let q = self.turned::<T>(&all_q[part(width)], stride, positions, q_norm, self.heads);
        let k = self.turned::<T>(&all_k[part(keys)], self.head_dim, positions, k_norm, self.kv_heads);
        let v = &inputs[VALUES].values::<T>()[part(keys)];
        let out: &mut [T] = out.values();
        let mut rows = vec![];
        let mut rest = &mut *out;
        for (span, buffers) in spans.iter().zip(buffers.chunks_exact_mut(2)) {
            let out;
            (out, rest) = rest.split_at_mut(span.tokens * queries);
            rows.push(Row { span, buffers, out });
        }
        let work: usize =
            spans.iter().map(|span| span.tokens * (span.past + span.tokens) * queries * 2).sum();
        for_each_row(
            &mut rows,
            |row| row.span.tokens,
            work,
            |row| {
                let start = row.span.start - tokens.start;
                let of = |width: usize| start * width..(start + row.span.tokens) * width;
                let [all_keys, all_values] = &mut *row.buffers else { unreachable!("two buffers of a row") };
                let (all_keys, all_values) = (all_keys.values::<T>(), all_values.values::<T>());
                let append = |buffer: &mut [T], new: &[T]| {
                    kernels::append_kv(buffer, new, row.span.past, self.kv_heads, self.head_dim);
                };
                append(all_keys, &k[of(keys)]);
                append(all_values, &v[of(keys)]);
                kernels::attention(
                    self.shape(row.span),
                    &q[of(queries)],
                    all_keys,
                    all_values,
                    softmax,
                    row.out,
                );
            },
        );
        if self.gated {
            let gates = &inputs[QUERIES].values::<T>()[part(width)][self.head_dim..];
            kernels::sigmoid_gated(out, gates, stride, self.head_dim);
        }
    }

    /// Heads, the first numbers of each `stride`, after their norm and rotation.
    fn turned<T: Activations>(
        &self,
        x: &[f32],
        stride: usize,
        positions: &[i32],
        norm: Option<&NormParts>,
        heads: usize,
    ) -> Vec<T> {
        let (scale, dim) = (self.rope_scale, self.head_dim);
        let mut out = vec![T::default(); x.len() / stride * dim];
        let rope = |x: &[f32]| {
            kernels::rope(x, positions, &self.frequencies, self.pairs, scale, &mut out, heads, dim)
        };
        if stride == dim {
            with_normed(norm, x, rope);
        } else {
            with_scratch(x.len() / stride * dim, |own| {
                kernels::for_each_chunk(own, heads * dim, x.len(), |t, token| {
                    let from = x[t * heads * stride..].chunks_exact(stride);
                    token.chunks_exact_mut(dim).zip(from).for_each(|(to, x)| to.copy_from_slice(&x[..dim]));
                });
                with_normed(norm, own, rope);
            });
        }
        out
    }

    fn shape(&self, row: &Span) -> AttentionShape {
        AttentionShape {
            tokens: row.tokens,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            value_dim: self.head_dim,
            length: row.past + row.tokens,
            capacity: row.capacity,
            window: row.window,
        }
    }
}
