//! Softmax attention over a growing key/value buffer: causal, or in both directions.
//!
//! Keys are processed in blocks of [`KEY_BLOCK`] positions of the buffer. The softmax of a query
//! over each block is computed separately; blocks are then merged from first to last. So a query's
//! bits do not depend on the queries or threads that are computed with it, but do depend on the
//! positions of the blocks' edges.

mod block;
mod head;
mod scores;
mod tile;
mod weighted;

pub use tile::{AttentionMask, AttentionShape, KEY_BLOCK, Softmax};

use head::{KvHead, ValueRows};
use tile::QueryTile;

use crate::{
    disjoint::DisjointMut,
    lanes::LANES,
    memory::with_scratch,
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// Query rows that share each key and value loaded into the cache.
const MAX_TILE_ROWS: usize = 128;
/// Below this many tiles, their blocks are spread over threads too.
const FEW_TILES: usize = 16;
/// Tasks into which the blocks of few tiles are cut.
const BLOCK_TASKS: usize = 32;
/// Floats of the partial results that are kept at a time, unless [`BLOCK_TASKS`] blocks have more:
/// 4 MB, which threads keep.
const MAX_PARTIALS: usize = 1 << 20;

/// Writes `new` `[tokens, kv_heads, head_dim]` at position `at` of `buffer`
/// `[kv_heads, capacity, head_dim]`, rounded to its type.
pub fn append_kv<T: Scalar, S: Scalar>(
    buffer: &mut [S],
    new: &[T],
    at: usize,
    kv_heads: usize,
    head_dim: usize,
) {
    let capacity = buffer.len() / (kv_heads * head_dim);
    for (t, token) in new.chunks_exact(kv_heads * head_dim).enumerate() {
        for (head, values) in token.chunks_exact(head_dim).enumerate() {
            let to = &mut buffer[(head * capacity + at + t) * head_dim..][..head_dim];
            dispatch(RoundRow { from: values, to });
        }
    }
}

/// `out = softmax(q kᵀ * scale) v`, causal unless `shape.mask` says otherwise: query `t` is at
/// position `p = length - tokens + t` and attends to keys up to `p`, the last `window` of them.
///
/// `q` `[tokens, heads, head_dim]`, `out` `[tokens, heads, value_dim]`; `k`
/// `[kv_heads, capacity, head_dim]`, `v` `[kv_heads, capacity, value_dim]`. Query head `h` uses key
/// head `h / (heads / kv_heads)`. Keys and values may be stored in a smaller type than queries.
pub fn attention<T: Scalar, S: Scalar>(
    shape: AttentionShape,
    q: &[T],
    k: &[S],
    v: &[S],
    softmax: Softmax,
    out: &mut [T],
) {
    let AttentionShape { kv_heads, capacity, value_dim, .. } = shape;
    assert_eq!(v.len(), kv_heads * capacity * value_dim, "values of {shape:?}");
    attend(shape, q, k, ValueRows { rows: v, stride: value_dim, dim: value_dim }, softmax, out);
}

/// [`attention`] in which the values of a key are its own first `value_dim` numbers: DeepSeek-V2's
/// latent attention, with queries already projected into the latent space. `kv`
/// `[kv_heads, capacity, head_dim]` holds both.
pub fn latent_attention<T: Scalar, S: Scalar>(
    shape: AttentionShape,
    q: &[T],
    kv: &[S],
    softmax: Softmax,
    out: &mut [T],
) {
    let AttentionShape { head_dim, value_dim, .. } = shape;
    assert!(value_dim <= head_dim, "values inside the keys of {shape:?}");
    attend(shape, q, kv, ValueRows { rows: kv, stride: head_dim, dim: value_dim }, softmax, out);
}

fn attend<T: Scalar, S: Scalar>(
    shape: AttentionShape,
    q: &[T],
    k: &[S],
    v: ValueRows<S>,
    softmax: Softmax,
    out: &mut [T],
) {
    let AttentionShape { tokens, heads, kv_heads, head_dim, value_dim, length, capacity, window, .. } = shape;
    assert!(tokens <= length && length <= capacity && heads.is_multiple_of(kv_heads), "{shape:?}");
    assert!(window > 0 && head_dim > 0 && value_dim > 0, "{shape:?}");
    assert_eq!(q.len(), tokens * heads * head_dim, "queries of {shape:?}");
    assert_eq!(out.len(), tokens * heads * value_dim, "outputs of {shape:?}");
    assert_eq!(k.len(), kv_heads * capacity * head_dim, "keys of {shape:?}");
    assert!(softmax.sinks.is_none_or(|sinks| sinks.len() == heads), "sinks of {shape:?}");
    if tokens == 0 {
        return;
    }
    let call = AttentionCall { shape, q, k, v, softmax };
    let rows = tokens * heads / kv_heads;
    let per_head = rows.div_ceil(MAX_TILE_ROWS);
    let tiles = kv_heads * per_head;
    let (first, last) = call.tile(0, 0, rows).all_visible();
    let blocks = last.div_ceil(KEY_BLOCK) - first / KEY_BLOCK;
    let out = DisjointMut::new(out);
    if tiles < FEW_TILES && blocks > 1 {
        return call.by_block(per_head, &out);
    }
    let mut tasks: Vec<usize> = (0..tiles).rev().collect();
    for_each_chunk(&mut tasks, 1, call.work(), |_, task| call.whole_tile(task[0], per_head, &out));
}

/// The arguments of one call.
struct AttentionCall<'a, T, S> {
    shape: AttentionShape,
    q: &'a [T],
    k: &'a [S],
    v: ValueRows<'a, S>,
    softmax: Softmax<'a>,
}

impl<T: Scalar, S: Scalar> AttentionCall<'_, T, S> {
    /// Approximate multiply-adds.
    fn work(&self) -> usize {
        let AttentionShape { tokens, heads, head_dim, value_dim, length, window, .. } = self.shape;
        tokens * heads * (head_dim + value_dim) * length.min(window)
    }

    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// Tile `index` of key head `kv_head`.
    fn tile(&self, kv_head: usize, index: usize, max_rows: usize) -> QueryTile<'_> {
        let (group, first) = (self.group(), index * max_rows);
        let softmax = Softmax {
            sinks: self.softmax.sinks.map(|sinks| &sinks[kv_head * group..][..group]),
            ..self.softmax
        };
        let rows = (self.shape.tokens * group - first).min(max_rows);
        QueryTile { shape: self.shape, softmax, first, rows }
    }

    /// Blocks of keys that the tile attends to.
    fn blocks(tile: &QueryTile) -> std::ops::Range<usize> {
        let (first, last) = tile.all_visible();
        first / KEY_BLOCK..last.div_ceil(KEY_BLOCK)
    }

    fn head(&self, kv_head: usize) -> KvHead<'_, S> {
        let AttentionShape { capacity, head_dim, .. } = self.shape;
        let v = ValueRows {
            rows: &self.v.rows[kv_head * capacity * self.v.stride..][..capacity * self.v.stride],
            ..self.v
        };
        KvHead { k: &self.k[kv_head * capacity * head_dim..][..capacity * head_dim], v, head_dim }
    }

    /// The index of the tile's row `row` among all tokens' heads.
    fn row_index(&self, tile: &QueryTile, kv_head: usize, row: usize) -> usize {
        let row = tile.first + row;
        row / self.group() * self.shape.heads + kv_head * self.group() + row % self.group()
    }

    /// Floats of a tile's queries, whole cache lines.
    fn query_floats(&self, tile: &QueryTile) -> usize {
        (tile.rows * self.shape.head_dim).next_multiple_of(LANES)
    }

    /// The tile's queries as float32, `[rows, head_dim]`.
    fn queries(&self, tile: &QueryTile, kv_head: usize, queries: &mut [f32]) {
        let head_dim = self.shape.head_dim;
        for (row, to) in queries.chunks_exact_mut(head_dim).take(tile.rows).enumerate() {
            let from = &self.q[self.row_index(tile, kv_head, row) * head_dim..][..head_dim];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
        }
    }

    fn write(&self, tile: &QueryTile, kv_head: usize, means: &[f32], out: &DisjointMut<T>) {
        let value_dim = self.shape.value_dim;
        for (row, means) in means.chunks_exact(tile.value_stride()).enumerate() {
            // SAFETY: every row belongs to one tile, and every tile is finished by one task.
            let out = unsafe { out.part(self.row_index(tile, kv_head, row) * value_dim, value_dim) };
            dispatch(RoundRow { from: &means[..value_dim], to: out });
        }
    }

    /// One tile with all its blocks.
    fn whole_tile(&self, index: usize, per_head: usize, out: &DisjointMut<T>) {
        let kv_head = index / per_head;
        let tile = self.tile(kv_head, index % per_head, MAX_TILE_ROWS);
        let source = self.head(kv_head);
        let (q, partial) = (self.query_floats(&tile), tile.partial_length());
        with_scratch(q + 2 * partial + tile.scratch_length(), |memory| {
            let (q, memory) = memory.split_at_mut(q);
            let (partial, memory) = memory.split_at_mut(partial);
            let (total, scratch) = memory.split_at_mut(partial.len());
            self.queries(&tile, kv_head, q);
            tile.clear(total);
            for block in Self::blocks(&tile) {
                tile.attend(&source, q, block, scratch, partial);
                tile.merge(total, partial, block);
            }
            self.write(&tile, kv_head, tile.finish(total), out);
        });
    }

    /// For few tiles: each block separately, then merged in order; as many at a time as
    /// [`MAX_PARTIALS`] has room for.
    fn by_block(&self, per_head: usize, out: &DisjointMut<T>) {
        let tile_at = |index: usize| self.tile(index / per_head, index % per_head, MAX_TILE_ROWS);
        let tiles = 0..self.shape.kv_heads * per_head;
        let length = tiles.clone().map(|index| tile_at(index).partial_length()).max().unwrap_or(0);
        let blocks: Vec<(usize, usize)> =
            tiles.flat_map(|index| Self::blocks(&tile_at(index)).map(move |block| (index, block))).collect();
        let at_once = blocks.len().min((MAX_PARTIALS / length).max(BLOCK_TASKS));
        with_scratch((at_once + 1) * length, |memory| {
            let (total, partials) = memory.split_at_mut(length);
            for blocks in blocks.chunks(at_once) {
                self.attend_blocks(blocks, per_head, length, partials);
                let mut partials = partials.chunks_exact_mut(length);
                for blocks in blocks.chunk_by(|a, b| a.0 == b.0) {
                    let index = blocks[0].0;
                    let tile = tile_at(index);
                    let (all, own) = (Self::blocks(&tile), tile.partial_length());
                    for (&(_, block), partial) in blocks.iter().zip(&mut partials) {
                        if block == all.start {
                            tile.clear(&mut total[..own]);
                        }
                        tile.merge(&mut total[..own], &mut partial[..own], block);
                        if block + 1 == all.end {
                            self.write(&tile, index / per_head, tile.finish(&mut total[..own]), out);
                        }
                    }
                }
            }
        });
    }

    /// The partial results of tiles' blocks, each in `length` floats.
    fn attend_blocks(&self, blocks: &[(usize, usize)], per_head: usize, length: usize, partials: &mut [f32]) {
        let piece = blocks.len().div_ceil(BLOCK_TASKS);
        let mut tasks: Vec<_> = blocks.chunks(piece).zip(partials.chunks_mut(piece * length)).collect();
        for_each_chunk(&mut tasks, 1, self.work(), |_, task| {
            let (blocks, ref mut partials) = task[0];
            let mut partials = partials.chunks_exact_mut(length);
            for blocks in blocks.chunk_by(|a, b| a.0 == b.0) {
                let (kv_head, index) = (blocks[0].0 / per_head, blocks[0].0 % per_head);
                let tile = self.tile(kv_head, index, MAX_TILE_ROWS);
                let (source, q) = (self.head(kv_head), self.query_floats(&tile));
                with_scratch(q + tile.scratch_length(), |memory| {
                    let (q, scratch) = memory.split_at_mut(q);
                    self.queries(&tile, kv_head, q);
                    for (&(_, block), partial) in blocks.iter().zip(&mut partials) {
                        tile.attend(&source, q, block, scratch, &mut partial[..tile.partial_length()]);
                    }
                });
            }
        });
    }
}

struct RoundRow<'a, T, S> {
    from: &'a [T],
    to: &'a mut [S],
}

impl<T: Scalar, S: Scalar> WithSimd for RoundRow<'_, T, S> {
    #[inline(always)]
    fn run(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = S::from_f32(from.to_f32());
        }
    }
}
