//! Shared memory of kernels, and what a block of threads takes at once.

use super::parameters::EXPERT_WARPS;

/// Most shared memory that a block may have.
pub const MAX_SHARED: usize = 227 << 10;

const fn block_bytes(bits: usize) -> usize {
    16 * 512 * bits / 8 + 8 * 16 * 4
}

/// Shared memory of a product of few rows, in passes of `segments`. With several passes each tile
/// of a block takes 256 bytes more for each set.
pub const fn skinny_shared(
    bits: usize,
    warps: usize,
    depth: usize,
    sets: usize,
    segments: usize,
    rows: usize,
) -> usize {
    warps * depth * block_bytes(bits)
        + 4 * segments * sets * 64 * 4
        + segments * 8 * rows * (128 + 8)
        + (warps * depth + segments) * 8
        + 4 * 4
        + 256
}

/// Shared memory of a product of up to 64 rows.
pub const fn medium_shared(bits: usize) -> usize {
    let (codes, depth) = (4 * 16 * 64 * bits / 8, if bits == 4 { 4 } else { 3 });
    64 * 64 * 4 + 8 * depth * (codes + 4 * 16 * 4 + 32 * 2 * 64 + 32 * 8) + 16
}

/// Shared memory of a product of many rows.
pub const fn wide_shared(bits: usize) -> usize {
    let (codes, depth) = (8 * 16 * 64 * bits / 8, if bits == 4 { 6 } else { 5 });
    let group = codes + 8 * 16 * 4 + 128 * 2 * 64 + 128 * 8;
    128 * 128 * 4 + depth * (group + 16) + 128
}

/// Rows of a tile of products by warpgroups, and its features.
pub const WARPGROUP_ROWS: usize = 128;
pub const WARPGROUP_FEATURES: usize = 128;
/// Rows of a block of their inputs, and the bytes of its integers and steps of a group.
pub const WARPGROUP_BLOCK_ROWS: usize = 64;
pub const WARPGROUP_BLOCK: usize = WARPGROUP_BLOCK_ROWS * (2 * 64 + 8);
/// Two warpgroups, and one that brings what they need: it takes part with a warp, but the two take
/// the registers of all of its threads.
pub const WARPGROUP_THREADS: u32 = 3 * 128;

/// Shared memory of a product of many rows by warpgroups.
pub const fn warpgroup_shared(bits: usize) -> usize {
    // Groups of a piece of weights, and pieces; pairs of groups of inputs.
    let (groups, pieces) = if bits == 4 { (4, 2) } else { (2, 3) };
    let weights = pieces * (WARPGROUP_FEATURES / 16) * groups * (16 * 64 * bits / 8 + 16 * 4);
    let (slots, slot) = (3, 2 * (WARPGROUP_ROWS / WARPGROUP_BLOCK_ROWS) * WARPGROUP_BLOCK);
    WARPGROUP_FEATURES * WARPGROUP_ROWS * 4 + weights + slots * slot + 512
}
const _: () = assert!(warpgroup_shared(4) <= MAX_SHARED && warpgroup_shared(8) <= MAX_SHARED);

/// Features of a tile of products of 9 to 64 rows by warpgroups.
pub const MEDIUM_FEATURES: usize = 64;
/// Four warpgroups that take segments in turns, and one that brings what they need.
pub const MEDIUM_THREADS: u32 = 128 * (4 + 1);

/// Shared memory of a product of 9 to 64 rows by warpgroups, with tiles of `rows`.
pub const fn medium_warpgroup_shared(bits: usize, rows: usize) -> usize {
    let (totals, turns, workers) = (MEDIUM_FEATURES * rows * 4, 128, 4);
    let pieces = 2 * (MEDIUM_FEATURES / 16) * 4 * (16 * 64 * bits / 8 + 16 * 4);
    let (slot, barriers) = (rows * (2 * 64 + 8), 256);
    let room = (MAX_SHARED - totals - turns) / workers - pieces - barriers;
    let slots = match room / slot {
        0..4 => 2,
        4..8 => 4,
        _ => 8,
    };
    totals + turns + workers * (pieces + slots * slot + barriers)
}

/// Shared memory of a delta rule.
pub const fn delta_shared(dim: usize) -> usize {
    3 * (16 * (3 * dim * 4 + 8)) + 3 * 8 + 1024
}

/// Shared memory of a block of attention of up to `rows` queries; with `deep` pipelines it has a
/// multiprocessor to itself.
pub const fn few_shared(dim: usize, rows: usize, deep: bool) -> usize {
    let (slots, parts) = if deep { (1024 / dim, 4) } else { (512 / dim, 3) };
    let (piece, keys) = (16, 8 * parts * 32 * 20);
    (slots * piece * dim + keys + rows * dim + 256 * rows + 11 * rows) * 4 + slots * 8
}

/// Queries in a block of attention of many queries.
pub const fn many_queries(dim: usize) -> usize {
    if dim == 256 { 16 } else { 32 }
}

pub const fn many_shared(dim: usize) -> usize {
    let rows = many_queries(dim);
    (2 * 256 * 20 + rows * dim + 256 * (rows + 4) + 8 * rows) * 4
}

/// Queries in a block of a prompt's attention.
pub const fn prompt_queries(dim: usize) -> usize {
    if dim == 256 { 32 } else { 64 }
}

pub const fn prompt_shared(dim: usize) -> usize {
    let rows = prompt_queries(dim);
    let keys = 4 / (rows / 32) * 64;
    (2 * 16 * keys + dim * rows + 256 * rows + (keys / 64 + 2) * rows) * 4
}

/// Shared memory of a product of few rows and experts.
pub const fn experts_shared(bits: usize) -> usize {
    EXPERT_WARPS * (if bits == 4 { 4 } else { 2 }) * block_bytes(bits)
}

/// Shared memory of attention with heads of any size, of `rows` queries.
pub const fn any_shared(rows: usize, dim: usize, value_dim: usize) -> usize {
    (256 + 8 + 6 + dim + value_dim) * rows * 4
}
