//! Attention of sequences with heads of any size, and what comes before it. The kernels are slower than
//! those of [`core_attention`](super::core_attention), which has sizes of its own.

use kernels::{
    RopePairs,
    cuda::{AnyHeads, AttentionSpan, AttentionSpans, HeadOutputs, Rotations, any_shared},
};
use mlx::{Array, Dtype, cuda::Arguments};

use super::{
    super::cpu,
    launch::{
        counters, device, empty, fall_back, into_resident, is_f32, launch, resident, resident_f32,
        scratch_f32,
    },
};
use crate::{KEY_BLOCK, KvBuffer, Rope, Softmax};

/// Sequences of a launch.
pub(super) const ROWS: usize = 64;
/// The largest angle that the kernels' sines are accurate for.
const MAX_RADIANS: f32 = 1e6;
/// Queries of a key head that a block of threads has.
const FEW: i32 = 4;
const MANY: i32 = 16;
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
    let few = rows.iter().all(|row| queries(row) <= FEW);
    let together = if few { FEW } else { MANY };
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
        let grid = [kv_heads as usize, chunks as usize, 1];
        launch(name, grid, 256, shared, arguments.with(sizes).with(outputs));
    }
}

/// Whether kernels take heads of these sizes and types.
pub(super) fn has_kernels(arrays: &[&Array], dims: [i32; 2]) -> bool {
    const MOST: i32 = 1024;
    arrays.iter().all(|array| is_f32(array) && array.size() > 0)
        && dims.iter().all(|dim| dim % 4 == 0 && (4..=MOST).contains(dim))
}

/// See [`attend`](crate::attend).
#[track_caller]
pub(crate) fn attend(
    q: &Array,
    [k, v]: [&Array; 2],
    [keys, values]: [&mut KvBuffer; 2],
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    if !has_kernels(&[q, k, v], [q.dim(2), v.dim(2)]) {
        fall_back("attention in other types than float32 or with heads that are no multiple of 4");
        return cpu::attend(q, [k, v], [keys, values], past, window, softmax);
    }
    append_kv([k, v], [keys, values], past);
    attend_cached(q, [keys, values], past + q.dim(0), window, softmax)
}

/// See [`append_kv`](crate::append_kv).
#[track_caller]
pub(crate) fn append_kv([k, v]: [&Array; 2], [keys, values]: [&mut KvBuffer; 2], past: i32) {
    if !has_kernels(&[k, v], [k.dim(2), v.dim(2)]) {
        return cpu::append_kv([k, v], [keys, values], past);
    }
    append(keys, k, past);
    append(values, v, past);
}

#[track_caller]
fn append(buffer: &mut KvBuffer, new: &Array, past: i32) {
    let to = into_resident(buffer.reserve_for(new, past, Dtype::Float32));
    append_to(&to, new, past);
    buffer.refill(Some(to));
}

/// Writes `new` `[tokens, kv_heads, dim]` to `[kv_heads, capacity, dim]` after `past` tokens.
#[track_caller]
pub(super) fn append_to(buffer: &Array, new: &Array, past: i32) {
    let from = resident(new);
    let arguments = Arguments::new()
        .with(from.device_address())
        .with(buffer.device_address())
        .with(new.size() as i32)
        .with(new.dim(1))
        .with(new.dim(2))
        .with(buffer.dim(1))
        .with(past);
    launch("append_heads", [new.size().div_ceil(256), 1, 1], 256, 0, arguments);
}

/// See [`attend_cached`](crate::attend_cached).
#[track_caller]
pub(crate) fn attend_cached(
    q: &Array,
    [keys, values]: [&KvBuffer; 2],
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let dims = [q.dim(2), values.filled().dim(2)];
    if !has_kernels(&[q, keys.filled(), values.filled()], dims) {
        return cpu::attend_cached(q, [keys, values], length, window, softmax);
    }
    let [keys, values] = [keys, values].map(|buffer| resident(buffer.filled()).into_owned());
    attend_one(q, [keys, values], dims[1], length, window, softmax)
}

/// See [`attend_latent`](crate::attend_latent).
#[track_caller]
pub(crate) fn attend_latent(
    q: &Array,
    latent: &Array,
    latents: &mut KvBuffer,
    value_dim: i32,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    if !has_kernels(&[q, latent], [q.dim(2), value_dim]) {
        fall_back("latent attention in other types than float32 or of sizes that are no multiple of 4");
        return cpu::attend_latent(q, latent, latents, value_dim, past, window, softmax);
    }
    append(latents, latent, past);
    let both = resident(latents.filled()).into_owned();
    attend_one(q, [both.clone(), both], value_dim, past + q.dim(0), window, softmax)
}

/// Attention of one sequence, whose queries are the last of `length` tokens.
#[track_caller]
fn attend_one(
    q: &Array,
    [keys, values]: [Array; 2],
    value_dim: i32,
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let (q, tokens) = (resident(q), q.dim(0));
    let window = window.unwrap_or(i32::MAX);
    let row = Placed { keys, values, start: 0, tokens, past: length - tokens, window };
    let sinks = softmax.sinks.as_ref().map(resident_f32);
    let sinks = sinks.as_ref().map_or(0, |sinks| sinks.device_address());
    let outputs = HeadOutputs { gates: 0, sinks, stride: 0, padding: 0 };
    let out = empty(&[tokens, q.dim(1), value_dim]);
    attend_rows(&q, &[&row], value_dim, softmax, outputs, &out);
    out
}

/// See [`rope`](crate::rope).
#[track_caller]
pub(crate) fn rope(x: &Array, positions: &Array, rope: &Rope) -> Array {
    let Some(positions) = device_positions(x, positions, rope) else { return cpu::rope(x, positions, rope) };
    let (x, out) = (resident(x), empty(x.shape()));
    let count = [rope.frequencies.len() as i32];
    let frequencies = into_resident(Array::from_slice(&rope.frequencies, &count));
    // Without several positions of a token all axes are the same.
    let columns = if positions.ndim() == 2 { positions.dim(1) } else { 1 };
    let axes = (columns > 1).then(|| {
        let axes: Vec<u32> = rope.axes.iter().map(|&axis| axis.into()).collect();
        into_resident(Array::from_slice(&axes, &count))
    });
    let arguments = Rotations {
        x: x.device_address(),
        positions: positions.device_address(),
        frequencies: frequencies.device_address(),
        axes: axes.as_ref().map_or(0, Array::device_address),
        out: out.device_address(),
        heads: x.dim(1),
        dim: x.dim(2),
        half: count[0],
        columns,
        adjacent: (rope.pairs == RopePairs::Adjacent).into(),
        scale: rope.scale,
    };
    let shared = rope.frequencies.len() * 2 * size_of::<f32>();
    launch("rope", [x.dim(0) as usize, 1, 1], 256, shared, Arguments::new().with(arguments));
    out
}

/// The positions on the device; `None` if the CPU has to rotate.
#[track_caller]
fn device_positions(x: &Array, positions: &Array, rope: &Rope) -> Option<Array> {
    if !is_f32(x) || x.size() == 0 || rope.frequencies.is_empty() || positions.dtype() != Dtype::Int32 {
        return None;
    }
    let all: Vec<i32> = positions.to_vec().unwrap_or_else(|e| panic!("{e}"));
    are_near(&all, rope).then(|| resident(positions).into_owned())
}

/// Whether the kernels' sines are accurate for the angles of all positions.
pub(super) fn are_near(positions: &[i32], rope: &Rope) -> bool {
    let fastest = rope.frequencies.iter().fold(0.0f32, |most, f| most.max(f.abs()));
    positions.iter().all(|&position| position.abs() as f32 * fastest <= MAX_RADIANS)
}
