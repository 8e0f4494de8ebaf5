//! Rotation, appending and attention as operations of their own, for layers that are no
//! [`CoreAttention`](crate::CoreAttention).

use kernels::{
    RopePairs,
    cuda::{HeadOutputs, Rotations},
};
use mlx::{Array, Dtype, cuda::Arguments};

use super::{
    super::cpu,
    attend::{Placed, attend_rows},
    launch::{empty, fall_back, into_resident, is_f32, launch, resident, resident_f32},
};
use crate::{KvBuffer, Rope, Softmax};

/// The largest angle that the kernels' sines are accurate for.
const MAX_RADIANS: f32 = 1e6;

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
