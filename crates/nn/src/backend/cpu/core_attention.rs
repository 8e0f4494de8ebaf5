//! Core attention of a batch as one operation for each group of rows.

use std::{ops::Range, sync::Arc};

use kernels::{AttentionMask, AttentionShape, RopePairs, RopePositions, with_scratch};
use mlx::{Array, Input, Output, apply_many};

use super::{
    attention::PreparedSoftmax,
    batch::{for_each_row, in_groups},
    norm::{PreparedNorm, with_normed},
    values::{Activations, dispatch_stored, like, widened, with_scratch_of},
};
use crate::{CoreAttention, KvRow, precision::kv_cache_dtype};

/// A [`CoreAttention`] as kernels take it; sinks are an input.
pub(crate) struct PreparedAttention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    frequencies: Vec<f32>,
    axes: Vec<u8>,
    pairs: RopePairs,
    rope_scale: f32,
    qk_norm: Option<[Arc<PreparedNorm>; 2]>,
    softmax: PreparedSoftmax,
    output_gate: bool,
}

/// A row's tokens, and where its buffers hold them.
struct RowSpan {
    /// The first token, among those of all rows.
    start: usize,
    tokens: usize,
    past: usize,
    capacity: usize,
    window: usize,
    /// Tokens of the row that attend to one another.
    images: Vec<Range<usize>>,
}

/// Inputs; sinks, if there are any, and the rows' buffers follow.
const QUERIES: usize = 0;
const KEYS: usize = 1;
const VALUES: usize = 2;
const POSITIONS: usize = 3;
const SINKS: usize = 4;

/// See [`CoreAttention::forward`].
#[track_caller]
pub(crate) fn core_attention(
    attention: &CoreAttention,
    qkv: [&Array; 3],
    positions: &Array,
    rows: &mut [KvRow],
) -> Array {
    attention.prepared().check(qkv, positions, rows);
    let step = |start, rows: &mut [KvRow]| group(attention, qkv, positions, start, rows);
    in_groups(qkv[0], rows, |row| row.tokens, step)
}

/// [`core_attention`] of a group of rows, whose tokens begin at `start`.
#[track_caller]
fn group(
    attention: &CoreAttention,
    [q, k, v]: [&Array; 3],
    positions: &Array,
    start: i32,
    rows: &mut [KvRow],
) -> Array {
    let (kv_heads, head_dim) = (attention.kv_heads, attention.head_dim);
    let reserve = |row: &mut KvRow| row.reserve(kv_heads, head_dim, kv_cache_dtype(k.dtype()));
    let buffers: Vec<Array> = rows.iter_mut().flat_map(reserve).collect();
    let mut inputs = vec![q, k, v, positions];
    inputs.extend(&attention.softmax.sinks);
    let first = inputs.len();
    inputs.extend(&buffers);
    let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
    let mut outputs = vec![like(q, &[tokens, attention.heads * head_dim])];
    outputs.extend(buffers.iter().map(|buffer| like(buffer, buffer.shape())));
    // The buffers are outputs too, updated in place.
    let shared: Vec<(usize, usize)> = (0..buffers.len()).map(|i| (1 + i, first + i)).collect();
    let mut spans: Vec<RowSpan> = vec![];
    for (row, pair) in rows.iter().zip(buffers.chunks_exact(2)) {
        let start = spans.last().map_or(start as usize, |last| last.start + last.tokens);
        spans.push(RowSpan::new(start, row, &pair[0]));
    }
    let stored = buffers.first().map_or(q.dtype(), Array::dtype);
    let prepared = attention.prepared();
    let columns = position_columns(positions);
    let results = apply_many("attend_heads", &inputs, &outputs, &shared, move |inputs, outputs| {
        dispatch_stored!(inputs[QUERIES].dtype(), stored, [T, S] => {
            prepared.run::<T, S>(&spans, columns, inputs, outputs)
        })
    });
    let mut results = results.into_iter();
    let out = results.next().unwrap_or_else(|| unreachable!("the first output"));
    for row in rows {
        row.keys.refill(results.next());
        row.values.refill(results.next());
    }
    out
}

/// A row's tokens in parts: images, and what is between them.
fn segments(tokens: usize, images: &[Range<usize>]) -> Vec<(Range<usize>, AttentionMask)> {
    let (mut segments, mut done) = (vec![], 0);
    for image in images {
        segments.push((done..image.start, AttentionMask::Causal));
        segments.push((image.clone(), AttentionMask::Together));
        done = image.end;
    }
    segments.push((done..tokens, AttentionMask::Causal));
    segments.retain(|(tokens, _)| !tokens.is_empty());
    segments
}

/// Positions of a token: 1, or one on each axis.
fn position_columns(positions: &Array) -> usize {
    if positions.ndim() == 2 { positions.dim(1) as usize } else { 1 }
}

impl RowSpan {
    fn new(start: usize, row: &KvRow, keys: &Array) -> RowSpan {
        RowSpan {
            start,
            tokens: row.tokens as usize,
            past: row.past as usize,
            capacity: keys.dim(1) as usize,
            window: row.window.map_or(usize::MAX, |window| window as usize),
            images: row.images.iter().map(|span| span.start as usize..span.end as usize).collect(),
        }
    }
}

/// The outputs of a row.
struct RowOutputs<'a, 'b, T> {
    span: &'a RowSpan,
    buffers: &'a mut [Output<'b>],
    out: &'a mut [T],
}

impl PreparedAttention {
    #[track_caller]
    pub(crate) fn new(attention: &CoreAttention) -> PreparedAttention {
        PreparedAttention {
            heads: attention.heads as usize,
            kv_heads: attention.kv_heads as usize,
            head_dim: attention.head_dim as usize,
            frequencies: attention.rope.frequencies.clone(),
            axes: attention.rope.axes.clone(),
            pairs: attention.rope.pairs,
            rope_scale: attention.rope.scale,
            qk_norm: attention.qk_norm.as_ref().map(|[q, k]| [q.prepared(), k.prepared()]),
            softmax: PreparedSoftmax::new(&attention.softmax),
            output_gate: attention.output_gate,
        }
    }

    #[track_caller]
    fn check(&self, [q, k, v]: [&Array; 3], positions: &Array, rows: &[KvRow]) {
        let tokens: i32 = rows.iter().map(|row| row.tokens).sum();
        let shape = |heads: usize, dim: usize| [tokens, (heads * dim) as i32];
        assert_eq!(q.shape(), shape(self.heads, self.query_stride()), "queries");
        assert_eq!(k.shape(), shape(self.kv_heads, self.head_dim), "keys");
        assert_eq!(v.shape(), k.shape(), "values");
        assert_eq!(positions.dim(0), tokens, "positions");
        assert!(k.dtype() == q.dtype() && v.dtype() == q.dtype(), "queries, keys and values of one type");
    }

    /// Numbers from one query head to the next.
    fn query_stride(&self) -> usize {
        if self.output_gate { 2 * self.head_dim } else { self.head_dim }
    }

    fn run<T: Activations, S: Activations>(
        &self,
        spans: &[RowSpan],
        columns: usize,
        inputs: &[Input],
        outputs: &mut [Output],
    ) {
        let [out, buffers @ ..] = outputs else { unreachable!("an output") };
        let sinks = inputs.get(SINKS).filter(|_| inputs.len() > SINKS + buffers.len());
        let softmax = self.softmax.with_sinks(sinks);
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return };
        let tokens = first.start..last.start + last.tokens;
        let part = |width: usize| tokens.start * width..tokens.end * width;
        let [q_norm, k_norm] = self.qk_norm.as_ref().map_or([None, None], |[q, k]| [Some(&**q), Some(&**k)]);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let positions = &inputs[POSITIONS].values()[part(columns)];
        let stride = self.query_stride();
        let width = self.heads * stride;
        let (all_q, all_k) = (widened(&inputs[QUERIES]), widened(&inputs[KEYS]));
        let v = &inputs[VALUES].values::<T>()[part(keys)];
        let out: &mut [T] = out.values();
        with_scratch_of(tokens.len() * queries, |q| {
            with_scratch_of(tokens.len() * keys, |k| {
                self.rotate(&all_q[part(width)], stride, positions, q_norm, self.heads, q);
                self.rotate(&all_k[part(keys)], self.head_dim, positions, k_norm, self.kv_heads, k);
                self.attend_rows::<T, S>(spans, [q, k, v], softmax, out, buffers);
            });
        });
        if self.output_gate {
            let gates = &inputs[QUERIES].values::<T>()[part(width)][self.head_dim..];
            kernels::sigmoid_gated(out, gates, stride, self.head_dim);
        }
    }

    /// Appends each row's keys and values to its buffers and attends to these.
    fn attend_rows<T: Activations, S: Activations>(
        &self,
        spans: &[RowSpan],
        [q, k, v]: [&[T]; 3],
        softmax: kernels::Softmax,
        out: &mut [T],
        buffers: &mut [Output],
    ) {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let (mut rows, mut rest) = (vec![], out);
        for (span, buffers) in spans.iter().zip(buffers.chunks_exact_mut(2)) {
            let out;
            (out, rest) = rest.split_at_mut(span.tokens * queries);
            rows.push(RowOutputs { span, buffers, out });
        }
        let work: usize =
            spans.iter().map(|span| span.tokens * (span.past + span.tokens) * queries * 2).sum();
        let attend = |row: &mut RowOutputs<T>| {
            let start = row.span.start - spans[0].start;
            let of = |width: usize| start * width..(start + row.span.tokens) * width;
            let [all_keys, all_values] = &mut *row.buffers else { unreachable!("two buffers of a row") };
            let (all_keys, all_values) = (all_keys.values::<S>(), all_values.values::<S>());
            let append = |buffer: &mut [S], new: &[T]| {
                kernels::append_kv(buffer, new, row.span.past, self.kv_heads, self.head_dim);
            };
            append(all_keys, &k[of(keys)]);
            append(all_values, &v[of(keys)]);
            let q = &q[of(queries)];
            for (tokens, mask) in segments(row.span.tokens, &row.span.images) {
                let part = tokens.start * queries..tokens.end * queries;
                let (shape, out) = (self.shape(row.span, tokens, mask), &mut row.out[part.clone()]);
                kernels::attention(shape, &q[part], all_keys, all_values, softmax, out);
            }
        };
        for_each_row(&mut rows, |row| row.span.tokens, work, attend);
    }

    /// Writes heads, the first numbers of each `stride`, after norm and rotation.
    fn rotate<T: Activations>(
        &self,
        x: &[f32],
        stride: usize,
        positions: &[i32],
        norm: Option<&PreparedNorm>,
        heads: usize,
        out: &mut [T],
    ) {
        let (scale, dim) = (self.rope_scale, self.head_dim);
        let rope = |x: &[f32]| {
            let positions = RopePositions { values: positions, axes: &self.axes };
            kernels::rope(x, positions, &self.frequencies, self.pairs, scale, out, heads, dim)
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
    }

    /// Attention shape of the queries `tokens` of a row, whose keys are all in its buffers.
    fn shape(&self, row: &RowSpan, tokens: Range<usize>, mask: AttentionMask) -> AttentionShape {
        AttentionShape {
            tokens: tokens.len(),
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            value_dim: self.head_dim,
            length: row.past + tokens.end,
            capacity: row.capacity,
            window: row.window,
            mask,
        }
    }
}
