//! Core attention of a batch: norms, rotation and appending in one launch, attention in one or two;
//! for a single token in two or three operations of the persistent kernel.

use kernels::{
    RopePairs,
    cuda::{
        ATTENTION_PARTIAL, ATTENTION_QUAD, ATTENTION_SLICE, HeadArrays, HeadOutputs, HeadSizes, HeadSpan,
        HeadSpans, OperationKind, SHORT_ATTENTION_BLOCKS, TokenAttention,
    },
};
use mlx::{Array, Dtype, cuda::Arguments};

use super::{
    super::cpu,
    attend::{FEW, Placed, ROWS, attend_rows, attention_spans, is_own_size},
    attention::{append_to, are_near, has_kernels, rope},
    launch::{empty, fall_back, into_resident, is_f32, launch, resident, resident_f32, scratch_f32, zeros},
    persistent::{self, queue},
};
use crate::{CoreAttention, KEY_BLOCK, KvRow, RmsNorm};

/// Parameters on the device.
pub(crate) struct DeviceAttention {
    frequencies: Array,
    sinks: Option<Array>,
}

/// Warps of a block of the kernel `heads`, each with a head.
const HEAD_WARPS: usize = 8;

/// See [`CoreAttention::forward`].
#[track_caller]
pub(crate) fn core_attention(
    attention: &CoreAttention,
    [q, k, v]: [&Array; 3],
    positions: &Array,
    rows: &mut [KvRow],
) -> Array {
    if let Some(why) = unsupported(q, rows) {
        fall_back(why);
        return cpu::core_attention(attention, [q, k, v], positions, rows);
    }
    if !has_own_kernels(attention, positions) {
        return with_heads_of_any_size(attention, [q, k, v], positions, rows);
    }
    let positions: Vec<i32> = positions.to_vec().unwrap_or_else(|e| panic!("{e}"));
    if !are_near(&positions, &attention.rope) {
        fall_back("rotations by more than a million radians");
        let host = Array::from_slice(&positions, &[positions.len() as i32]);
        return cpu::core_attention(attention, [q, k, v], &host, rows);
    }
    let qkv = [q, k, v].map(resident);
    let [q, k, v] = qkv.each_ref().map(|array| &**array);
    let out = empty(&[q.dim(0), attention.heads * attention.head_dim]);
    let mut start = 0;
    for rows in rows.chunks_mut(ROWS) {
        start = some_rows(attention, [q, k, v], &positions, start, rows, &out);
    }
    out
}

/// Whether the faster kernels compute it.
fn has_own_kernels(attention: &CoreAttention, positions: &Array) -> bool {
    positions.ndim() == 1 && is_own_size(attention.head_dim) && attention.softmax.softcap.is_none()
}

fn unsupported(q: &Array, rows: &[KvRow]) -> Option<&'static str> {
    if !is_f32(q) || q.size() == 0 {
        return Some("attention in other types than float32");
    }
    rows.iter().any(|row| !row.images.is_empty()).then_some("attention inside images")
}

/// The same by the kernels for heads of any size.
#[track_caller]
fn with_heads_of_any_size(
    attention: &CoreAttention,
    [q, k, v]: [&Array; 3],
    positions: &Array,
    rows: &mut [KvRow],
) -> Array {
    let CoreAttention { heads, kv_heads, head_dim: dim, .. } = *attention;
    if !has_kernels(&[q, k, v], [dim, dim]) {
        fall_back("attention with heads that are no multiple of 4");
        return cpu::core_attention(attention, [q, k, v], positions, rows);
    }
    // Rows of all arrays begin on the device.
    let [all_q, k, v] = [q, k, v].map(|array| resident(array).into_owned());
    let split = |x: &Array, heads| x.reshape(&[-1, heads, dim]);
    let q = match attention.output_gate {
        true => all_q.reshape(&[-1, heads, 2 * dim]).slice(-1, 0, dim),
        false => split(&all_q, heads),
    };
    let (mut q, mut k, v) = (q, split(&k, kv_heads), split(&v, kv_heads));
    if let Some([q_norm, k_norm]) = &attention.qk_norm {
        (q, k) = (q_norm.forward(&q), k_norm.forward(&k));
    }
    if !attention.rope.frequencies.is_empty() {
        [q, k] = [q, k].map(|x| rope(&x, positions, &attention.rope));
    }
    let (q, out) = (resident(&q).into_owned(), empty(&[q.dim(0), heads * dim]));
    let (outputs, mut start) = (head_outputs(attention, &all_q), 0);
    for rows in rows.chunks_mut(ROWS) {
        let placed = place(attention, rows, start);
        for row in placed.iter().filter(|row| row.tokens > 0) {
            let own = |x: &Array| x.slice(0, row.start, row.start + row.tokens);
            append_to(&row.keys, &own(&k), row.past);
            append_to(&row.values, &own(&v), row.past);
            start += row.tokens;
        }
        let all: Vec<&Placed> = placed.iter().collect();
        attend_rows(&q, &all, dim, &attention.softmax, outputs, &out);
        put_back(rows, placed);
    }
    out
}

/// The buffers of rows, with room for their tokens, which begin at `start`.
#[track_caller]
fn place(attention: &CoreAttention, rows: &mut [KvRow], mut start: i32) -> Vec<Placed> {
    let place = |row: &mut KvRow| {
        let (tokens, past) = (row.tokens, row.past);
        let buffers = row.reserve(attention.kv_heads, attention.head_dim, Dtype::Float32);
        let [keys, values] = buffers.map(into_resident);
        start += tokens;
        let window = row.window.unwrap_or(i32::MAX);
        Placed { keys, values, start: start - tokens, tokens, past, window }
    };
    rows.iter_mut().map(place).collect()
}

fn put_back(rows: &mut [KvRow], placed: Vec<Placed>) {
    for (row, Placed { keys, values, .. }) in rows.iter_mut().zip(placed) {
        row.keys.refill(Some(keys));
        row.values.refill(Some(values));
    }
}

/// Attention of some rows, whose tokens begin at `start`; returns where they end.
#[track_caller]
fn some_rows(
    attention: &CoreAttention,
    qkv: [&Array; 3],
    positions: &[i32],
    start: i32,
    rows: &mut [KvRow],
    out: &Array,
) -> i32 {
    let placed = place(attention, rows, start);
    let end = start + placed.iter().map(|row| row.tokens).sum::<i32>();
    let group = attention.heads / attention.kv_heads;
    let outputs = head_outputs(attention, qkv[0]);
    if qkv[0].dim(0) == 1 && group <= FEW && persistent::is_allowed() {
        let heads = Heads::of_rows(attention, qkv, positions, &placed, None);
        attend_token(attention, &heads, &placed[0], outputs, out);
    } else {
        let queries = rotate_and_append(attention, qkv, positions, &placed, end);
        let queries = queries.reshape(&[-1, attention.heads, attention.head_dim]);
        let all: Vec<&Placed> = placed.iter().collect();
        attend_rows(&queries, &all, attention.head_dim, &attention.softmax, outputs, out);
    }
    put_back(rows, placed);
    end
}

/// How heads are normalised, rotated and appended, as kernels take it.
struct Heads {
    sizes: HeadSizes,
    arrays: HeadArrays,
    spans: HeadSpans,
}

impl Heads {
    /// Those of `rows`; queries go to `out`, `[all tokens, heads, dim]`, if there is one.
    #[track_caller]
    fn of_rows(
        attention: &CoreAttention,
        [q, k, v]: [&Array; 3],
        positions: &[i32],
        rows: &[Placed],
        out: Option<&Array>,
    ) -> Heads {
        let CoreAttention { heads, kv_heads, head_dim: dim, rope, .. } = attention;
        let first = rows[0].start;
        let none = HeadSpan { keys: 0, values: 0, past: 0, capacity: 0, start: 0, position: 0 };
        let mut spans = HeadSpans { spans: [none; ROWS], count: rows.len() as i32, padding: 0 };
        for (span, row) in spans.spans.iter_mut().zip(rows) {
            let [keys, values] = row.buffers();
            *span = HeadSpan {
                keys,
                values,
                past: row.past - row.skipped(),
                capacity: row.keys.dim(1),
                start: row.start - first,
                position: positions[row.start as usize],
            };
        }
        let norm = |which: usize| attention.qk_norm.as_ref().map(|norms| &norms[which]);
        let weight = |norm: Option<&RmsNorm>| norm.map_or(0, |norm| norm.device_weight().device_address());
        let sizes = HeadSizes {
            heads: *heads,
            kv_heads: *kv_heads,
            dim: *dim,
            query_stride: query_stride(attention),
            half: rope.frequencies.len() as i32,
            adjacent: (rope.pairs == RopePairs::Adjacent).into(),
            rope_scale: rope.scale,
            query_eps: norm(0).map_or(0.0, |norm| norm.eps),
            key_eps: norm(1).map_or(0.0, |norm| norm.eps),
        };
        let from = |x: &Array| x.device_address() + first as u64 * x.dim(1) as u64 * 4;
        let arrays = HeadArrays {
            q: from(q),
            k: from(k),
            v: from(v),
            query_weight: weight(norm(0)),
            key_weight: weight(norm(1)),
            frequencies: attention.on_device().frequencies.device_address(),
            out: out.map_or(0, from),
        };
        Heads { sizes, arrays, spans }
    }
}

/// Queries after norm and rotation, `[all tokens, heads, dim]`, of which those of `rows` are
/// written; keys and values go to the buffers.
#[track_caller]
fn rotate_and_append(
    attention: &CoreAttention,
    qkv: [&Array; 3],
    positions: &[i32],
    rows: &[Placed],
    end: i32,
) -> Array {
    let CoreAttention { heads, kv_heads, head_dim: dim, .. } = attention;
    let out = empty(&[qkv[0].dim(0), heads * dim]);
    let Heads { sizes, arrays, spans } = Heads::of_rows(attention, qkv, positions, rows, Some(&out));
    let arguments = Arguments::new().with(spans).with(sizes).with(arrays);
    let tokens = (end - rows[0].start) as usize;
    let grid = [tokens, ((heads + 2 * kv_heads) as usize).div_ceil(HEAD_WARPS), 1];
    launch("heads", grid, HEAD_WARPS as u32 * 32, 0, arguments);
    out
}

/// Numbers from one query head to the next.
fn query_stride(attention: &CoreAttention) -> i32 {
    if attention.output_gate { 2 * attention.head_dim } else { attention.head_dim }
}

/// Attention of a single token.
#[track_caller]
fn attend_token(attention: &CoreAttention, heads: &Heads, row: &Placed, outputs: HeadOutputs, out: &Array) {
    let CoreAttention { heads: queries, kv_heads, head_dim: dim, .. } = attention;
    let quads = (queries / kv_heads + ATTENTION_QUAD - 1) / ATTENTION_QUAD;
    let blocks = (row.length() + KEY_BLOCK - 1) / KEY_BLOCK;
    let is_short = blocks <= SHORT_ATTENTION_BLOCKS;
    let slices = dim / ATTENTION_SLICE;
    let scores = scratch_f32([kv_heads * quads, blocks, KEY_BLOCK, ATTENTION_QUAD]);
    let partials_of = [kv_heads * quads * slices, blocks, ATTENTION_QUAD, ATTENTION_PARTIAL];
    let partials = (!is_short).then(|| scratch_f32(partials_of));
    let own = TokenAttention {
        v: heads.arrays.v,
        out: out.device_address(),
        scores: scores.pointer(),
        partials: partials.as_ref().map_or(0, |partials| partials.pointer()),
        outputs,
        heads: *queries,
        kv_heads: *kv_heads,
        quads,
        blocks,
        scale: attention.softmax.scale,
        dim: *dim,
        hidden: row.hidden() - row.skipped(),
        padding: 0,
    };
    use OperationKind::*;
    let (scores, values) = match (dim, is_short) {
        (64, false) => (Scores64, Values64),
        (64, true) => (Scores64, ValuesShort64),
        (128, false) => (Scores128, Values128),
        (128, true) => (Scores128, ValuesShort128),
        (_, false) => (Scores256, Values256),
        (_, true) => (Scores256, ValuesShort256),
    };
    let of_scores = Arguments::new().with(own).with(heads.sizes).with(heads.arrays);
    queue("scores", scores, of_scores.with(heads.spans.spans[0]));
    let (spans, _) = attention_spans(&[row], |_| 0);
    queue("values", values, Arguments::new().with(own).with(spans.spans[0]));
    if !is_short {
        queue("merge", Merge, Arguments::new().with(own));
    }
}

/// The gates after the queries, if there are any, and sinks.
#[track_caller]
fn head_outputs(attention: &CoreAttention, q: &Array) -> HeadOutputs {
    let gates = || q.device_address() + attention.head_dim as u64 * 4;
    let gates = if attention.output_gate { gates() } else { 0 };
    let sinks = attention.on_device().sinks.as_ref().map_or(0, Array::device_address);
    HeadOutputs { gates, sinks, stride: query_stride(attention), padding: 0 }
}

impl DeviceAttention {
    #[track_caller]
    pub(crate) fn new(attention: &CoreAttention) -> DeviceAttention {
        let frequencies = &attention.rope.frequencies;
        let frequencies = match frequencies.is_empty() {
            true => zeros(&[1], Dtype::Float32),
            false => into_resident(Array::from_slice(frequencies, &[frequencies.len() as i32])),
        };
        let sinks = attention.softmax.sinks.as_ref().map(|sinks| resident_f32(sinks).into_owned());
        DeviceAttention { frequencies, sinks }
    }
}
