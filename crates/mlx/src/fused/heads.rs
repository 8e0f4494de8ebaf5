//! Softmax attention of all rows of a batch as one operation.

use std::sync::Arc;

use kernels::{AttentionShape, RopePairs};

use super::{
    KernelSoftmax, like,
    parts::{Activations, NormParts, columns, narrow},
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
struct Row {
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
    let parts = heads.parts();
    parts.check([q, k, v], positions, rows);
    let buffers: Vec<Array> = rows.iter_mut().flat_map(|row| row.reserve(heads, k.dtype())).collect();
    let mut inputs = vec![q, k, v, positions];
    inputs.extend(&heads.softmax.sinks);
    let first = inputs.len();
    inputs.extend(&buffers);
    let mut outputs = vec![like(q, vec![q.dim(0), heads.heads * heads.head_dim])];
    outputs.extend(buffers.iter().map(|buffer| like(buffer, buffer.shape().to_vec())));
    // The buffers come out again, updated in place.
    let shared: Vec<(usize, usize)> = (0..buffers.len()).map(|i| (1 + i, first + i)).collect();
    let spans: Vec<Row> =
        rows.iter().zip(buffers.chunks_exact(2)).map(|(row, pair)| Row::of(row, &pair[0])).collect();
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

impl Row {
    fn of(row: &KvRow, keys: &Array) -> Row {
        Row {
            tokens: row.tokens as usize,
            past: row.past as usize,
            capacity: keys.dim(1) as usize,
            window: row.window.map_or(usize::MAX, |window| window as usize),
        }
    }
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

    fn run<T: Activations>(&self, rows: &[Row], inputs: &[Input], outputs: &mut [Output]) {
        let [out, buffers @ ..] = outputs else { unreachable!("an output") };
        let sinks = inputs.get(SINKS).filter(|_| inputs.len() > SINKS + buffers.len());
        let softmax = self.softmax.with(sinks);
        let [q_norm, k_norm] = self.norms.as_ref().map_or([None, None], |[q, k]| [Some(&**q), Some(&**k)]);
        let q = self.turned::<T>(&self.queries(&inputs[QUERIES]), &inputs[POSITIONS], q_norm, self.heads);
        let k = self.turned::<T>(&inputs[KEYS].wide(), &inputs[POSITIONS], k_norm, self.kv_heads);
        let v: &[T] = inputs[VALUES].values();
        let out: &mut [T] = out.values();
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut start = 0;
        for (row, pair) in rows.iter().zip(buffers.chunks_exact_mut(2)) {
            let end = start + row.tokens;
            let [all_keys, all_values] = pair else { unreachable!("two buffers of a row") };
            let (all_keys, all_values) = (all_keys.values::<T>(), all_values.values::<T>());
            let append = |buffer: &mut [T], new: &[T]| {
                let new = &new[start * keys..end * keys];
                kernels::append_kv(buffer, new, row.past, self.kv_heads, self.head_dim);
            };
            append(all_keys, &k);
            append(all_values, v);
            let (q, out) = (&q[start * queries..end * queries], &mut out[start * queries..end * queries]);
            kernels::attention(self.shape(row), q, all_keys, all_values, softmax, out);
            start = end;
        }
        if self.gated {
            let (attended, dim) = (out.to_vec(), self.head_dim);
            let gates = &inputs[QUERIES].values::<T>()[dim..];
            kernels::sigmoid_gated(&attended, gates, 2 * dim, out, dim);
        }
    }

    /// Queries without the gates behind them.
    fn queries<'a>(&self, input: &'a Input) -> std::borrow::Cow<'a, [f32]> {
        let both = input.wide();
        if !self.gated {
            return both;
        }
        columns(&both, 2 * self.head_dim, 0..self.head_dim).into()
    }

    /// Heads after their norm and rotation.
    fn turned<T: Activations>(
        &self,
        x: &[f32],
        positions: &Input,
        norm: Option<&NormParts>,
        heads: usize,
    ) -> Vec<T> {
        let normed = norm.map(|norm| norm.apply(x));
        let x = normed.as_deref().unwrap_or(x);
        let mut turned = vec![0.0; x.len()];
        let (positions, scale, dim) = (positions.values(), self.rope_scale, self.head_dim);
        kernels::rope(x, positions, &self.frequencies, self.pairs, scale, &mut turned, heads, dim);
        let mut out = vec![T::default(); x.len()];
        narrow(&turned, &mut out);
        out
    }

    fn shape(&self, row: &Row) -> AttentionShape {
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
