//! Attention of sequences whose keys and values are in their buffers: the kernels for each size of
//! heads and number of queries.

use kernels::cuda::{
    AnyHeads, AttentionSpan, AttentionSpans, HeadOutputs, any_shared, few_shared, many_queries, many_shared,
    prompt_queries, prompt_shared,
};
use mlx::{Array, cuda::Arguments};

use super::launch::{counters, device, launch, scratch_f32};
use crate::{KEY_BLOCK, Softmax};

/// Sequences of a launch.
pub(super) const ROWS: usize = 64;
/// Queries of a key head that a block of keys is given to a block of threads for.
pub(super) const FEW: i32 = 16;
/// The same of heads of any size.
const ANY_FEW: i32 = 4;
const ANY_MANY: i32 = 16;
/// Most memory for results of blocks of keys, in numbers.
const MOST_PARTIALS: usize = 1 << 25;

/// The buffers of a sequence, and its first token among those of all.
pub(super) struct Placed {
    pub keys: Array,
    pub values: Array,
    pub start: i32,
    pub tokens: i32,
    pub past: i32,
    /// Most keys that a query sees, its own included.
    pub window: i32,
}

impl Placed {
    /// Tokens before those that the row's first query sees.
    pub(super) fn hidden(&self) -> i32 {
        (self.past + 1 - self.window).max(0)
    }

    /// Whole blocks of them, in tokens: kernels get the buffers from there on.
    pub(super) fn skipped(&self) -> i32 {
        self.hidden() / KEY_BLOCK * KEY_BLOCK
    }

    /// Tokens that kernels get, the row's own included.
    pub(super) fn length(&self) -> i32 {
        self.past + self.tokens - self.skipped()
    }

    /// The addresses of those tokens' keys and values.
    pub(super) fn buffers(&self) -> [u64; 2] {
        [&self.keys, &self.values].map(|buffer| {
            let offset = self.skipped() as u64 * buffer.dim(2) as u64 * size_of::<f32>() as u64;
            buffer.device_address() + offset
        })
    }
}

/// Rows as kernels take them; each has `chunks` blocks of threads of its own.
pub(super) fn attention_spans(rows: &[&Placed], chunks: impl Fn(&Placed) -> i32) -> (AttentionSpans, i32) {
    let none = AttentionSpan {
        keys: 0,
        values: 0,
        start: 0,
        tokens: 0,
        length: 0,
        capacity: 0,
        first_chunk: 0,
        window: i32::MAX,
    };
    let mut spans = AttentionSpans { spans: [none; ROWS], count: rows.len() as i32, padding: 0 };
    let mut first_chunk = 0;
    for (span, row) in spans.spans.iter_mut().zip(rows) {
        let [keys, values] = row.buffers();
        *span = AttentionSpan {
            keys,
            values,
            start: row.start,
            tokens: row.tokens,
            length: row.length(),
            capacity: row.keys.dim(1),
            first_chunk,
            window: row.window,
        };
        first_chunk += chunks(row);
    }
    (spans, first_chunk)
}

/// Whether there are kernels for heads of this size, besides those for any.
pub(super) fn is_own_size(dim: i32) -> bool {
    [64, 128, 256].contains(&dim)
}

/// Attention of at most [`ROWS`] sequences: queries `q` `[tokens, heads, dim]`; values of
/// `value_dim` numbers may be parts of longer ones.
#[track_caller]
pub(super) fn attend_rows(
    q: &Array,
    rows: &[&Placed],
    value_dim: i32,
    softmax: &Softmax,
    outputs: HeadOutputs,
    out: &Array,
) {
    let Some(first) = rows.first() else { return };
    let (heads, dim, kv_heads) = (q.dim(1), q.dim(2), first.keys.dim(0));
    if !is_own_size(dim) || [value_dim, first.values.dim(2)] != [dim; 2] || softmax.softcap.is_some() {
        return attend_any(q, rows, value_dim, softmax, outputs, out);
    }
    let own = OwnHeads { heads, kv_heads, dim, scale: softmax.scale };
    let (few, many): (Vec<&Placed>, Vec<&Placed>) =
        rows.iter().partition(|row| row.tokens * heads / kv_heads <= FEW);
    attend_few(&own, q, &few, outputs, out);
    attend_many(&own, q, &many, outputs, out);
}

/// Heads of which kernels know the size.
struct OwnHeads {
    heads: i32,
    kv_heads: i32,
    dim: i32,
    scale: f32,
}

#[track_caller]
fn attend_few(own: &OwnHeads, q: &Array, rows: &[&Placed], outputs: HeadOutputs, out: &Array) {
    let Some(longest) = rows.iter().map(|row| row.length()).max() else { return };
    let OwnHeads { heads, kv_heads, dim, scale } = own;
    let queries = rows.iter().map(|row| row.tokens * heads / kv_heads).max().unwrap_or(0);
    let queries = if queries <= 4 { 4 } else { FEW };
    let blocks = (longest + KEY_BLOCK - 1) / KEY_BLOCK;
    let count = rows.len() as i32 * kv_heads;
    let partials = scratch_f32([count, blocks, queries, dim + 2]);
    let arrived = counters(count as usize);
    let (spans, _) = attention_spans(rows, |_| 0);
    let deep = queries == 4 && blocks * count <= device().multiprocessors as i32;
    let name = match (dim, queries, deep) {
        (64, 4, false) => "attend_few_64_4",
        (64, 4, true) => "attend_few_64_4_deep",
        (64, ..) => "attend_few_64_16",
        (128, 4, false) => "attend_few_128_4",
        (128, 4, true) => "attend_few_128_4_deep",
        (128, ..) => "attend_few_128_16",
        (_, 4, false) => "attend_few_256_4",
        (_, 4, true) => "attend_few_256_4_deep",
        _ => "attend_few_256_16",
    };
    let arguments = Arguments::new()
        .with(spans)
        .with(q.device_address())
        .with(out.device_address())
        .with(partials.pointer())
        .with(arrived)
        .with(*heads)
        .with(*kv_heads)
        .with(*scale)
        .with(outputs);
    let shared = few_shared(*dim as usize, queries as usize, deep);
    launch(name, [blocks as usize, *kv_heads as usize, rows.len()], 256, shared, arguments);
}

#[track_caller]
fn attend_many(own: &OwnHeads, q: &Array, rows: &[&Placed], outputs: HeadOutputs, out: &Array) {
    if rows.is_empty() {
        return;
    }
    let OwnHeads { heads, kv_heads, dim, scale } = own;
    let spans_of = |queries: usize| {
        let queries = queries as i32;
        attention_spans(rows, |row| (row.tokens * heads / kv_heads + queries - 1) / queries)
    };
    let (spans, chunks) = spans_of(prompt_queries(*dim as usize));
    let is_prompt = fills_device(*dim, chunks * kv_heads);
    let (spans, chunks) = if is_prompt { (spans, chunks) } else { spans_of(many_queries(*dim as usize)) };
    let name = match (dim, is_prompt) {
        (64, true) => "attend_prompt_64",
        (64, false) => "attend_many_64",
        (128, true) => "attend_prompt_128",
        (128, false) => "attend_many_128",
        (_, true) => "attend_prompt_256",
        (_, false) => "attend_many_256",
    };
    let arguments = Arguments::new()
        .with(spans)
        .with(q.device_address())
        .with(out.device_address())
        .with(*heads)
        .with(*kv_heads)
        .with(*scale)
        .with(outputs);
    let (chunks, kv_heads) = (chunks as usize, *kv_heads as usize);
    match is_prompt {
        true => launch(name, [kv_heads, chunks, 1], 128, prompt_shared(*dim as usize), arguments),
        false => launch(name, [chunks, kv_heads, 1], 256, many_shared(*dim as usize), arguments),
    }
}

/// Whether `chunks` of a prompt keep the device busy; fewer are done sooner in smaller ones. No bit
/// depends on it. Generations after 10 share less memory than the kernel needs.
///
/// Two chunks run at once on a multiprocessor. On an H200, those with heads of 256 were faster from
/// 0.97 for each on, with heads of 128 from 1.94 on but not with 0.97.
#[track_caller]
fn fills_device(head_dim: i32, chunks: i32) -> bool {
    let device = device();
    let least_of_four = if head_dim == 256 { 3 } else { 6 };
    matches!(device.capability.0, 9 | 10) && 4 * chunks >= least_of_four * device.multiprocessors as i32
}

#[track_caller]
fn attend_any(
    q: &Array,
    rows: &[&Placed],
    value_dim: i32,
    softmax: &Softmax,
    outputs: HeadOutputs,
    out: &Array,
) {
    let Some(longest) = rows.iter().map(|row| row.length()).max() else { return };
    let (heads, dim, kv_heads) = (q.dim(1), q.dim(2), rows[0].keys.dim(0));
    let sizes = AnyHeads {
        heads,
        kv_heads,
        dim,
        value_dim,
        value_stride: rows[0].values.dim(2),
        scale: softmax.scale,
        cap: softmax.softcap.unwrap_or(0.0),
    };
    let queries = |row: &Placed| row.tokens * heads / kv_heads;
    let few = rows.iter().all(|row| queries(row) <= ANY_FEW);
    let together = if few { ANY_FEW } else { ANY_MANY };
    let (spans, chunks) = attention_spans(rows, |row| (queries(row) + together - 1) / together);
    let shared = any_shared(together as usize, dim as usize, value_dim as usize);
    let arguments = Arguments::new().with(spans).with(q.device_address()).with(out.device_address());
    // Blocks of keys on multiprocessors that would have nothing to do.
    let (units, blocks) = (chunks * kv_heads, (longest + KEY_BLOCK - 1) / KEY_BLOCK);
    let partials = units as usize * blocks as usize * (together * (value_dim + 2)) as usize;
    if blocks > 1 && units < device().multiprocessors as i32 && partials <= MOST_PARTIALS {
        let partials = scratch_f32([units, blocks, together, value_dim + 2]);
        let arguments =
            arguments.with(partials.pointer()).with(counters(units as usize)).with(sizes).with(outputs);
        let name = if few { "attend_any_split_4" } else { "attend_any_split_16" };
        launch(name, [blocks as usize, units as usize, 1], 256, shared, arguments);
    } else {
        let name = if few { "attend_any_4" } else { "attend_any_16" };
        let grid = [chunks as usize, kv_heads as usize, 1];
        launch(name, grid, 256, shared, arguments.with(sizes).with(outputs));
    }
}
