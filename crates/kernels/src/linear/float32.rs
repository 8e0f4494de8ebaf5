//! The product in float32: sixteen lanes along `k`, summed as a fixed tree at the end, whatever the format.

use super::{Floats, Weight, affine, float, product::Product};
use crate::{
    lanes::{LANES, Lanes, fma, load_scalar, reduce},
    parallel::{for_each, for_each_chunk},
    scalar::{Scalar, widen},
    shared::Parts,
    simd::{Work, vectorize},
};

/// A weight, as rows to be read 16 values at a time.
pub(super) trait Matrix: Copy + Send + Sync {
    type Row: Row;
    fn row(self, index: usize) -> Self::Row;
}

/// One row of a weight.
pub(super) trait Row: Copy {
    /// Values `16 * chunk ..` of the row, zeros past its end.
    fn lanes(&self, chunk: usize) -> Lanes;
}

/// A matrix `[rows, k]` of plain numbers.
#[derive(Clone, Copy)]
struct Dense<'a, W> {
    values: &'a [W],
    k: usize,
}

impl<'a, W: Scalar> Matrix for Dense<'a, W> {
    type Row = &'a [W];
    #[inline(always)]
    fn row(self, index: usize) -> &'a [W] {
        &self.values[index * self.k..][..self.k]
    }
}

impl<W: Scalar> Row for &[W] {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        load_scalar(self, chunk)
    }
}

/// A row already in lanes.
impl Row for &[Lanes] {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        self[chunk]
    }
}

/// Weight rows computed together, and rows of `x` in a register tile.
const TILE: usize = 4;
/// Fewest weight rows one thread takes at a time.
const BLOCK: usize = 32;
/// Multiply-adds worth handing to a thread.
const TASK: usize = 32 * 1024;

/// `out` `[rows, n]` in the order of `product.targets`' indices.
pub(super) fn multiply_any(x: &[f32], weight: Weight, out: &mut [f32], product: &Product) {
    match weight {
        Weight::Dense(Floats::F32(values)) => multiply(x, Dense { values, k: product.k }, out, product),
        Weight::Dense(Floats::F16(values)) => multiply(x, Dense { values, k: product.k }, out, product),
        Weight::Dense(Floats::Bf16(values)) => multiply(x, Dense { values, k: product.k }, out, product),
        Weight::Affine(weight) => affine::multiply(x, weight, out, product),
        Weight::Microscaled(weight) => float::multiply(x, weight, out, product),
        Weight::Packed(_) => panic!("a weight packed for products of integers, in float32"),
    }
}

/// `weight` holds the matrices one below the other, `[matrices * n, k]`.
pub(super) fn multiply<W: Matrix>(x: &[f32], weight: W, out: &mut [f32], product: &Product) {
    let Product { k, n, ref targets, .. } = *product;
    let inputs = product.inputs();
    if out.is_empty() || k == 0 {
        return out.fill(0.0);
    }
    assert!(x.len() >= inputs * k, "x is not [{inputs}, {k}]");
    let columns = columns(&widen(x, k, LANES), weight, product);
    let out = Parts::new(out);
    for (_, rows) in product.matrices() {
        let (columns, count) = (&columns[rows.start * n..rows.end * n], rows.len());
        let targets = &targets[rows];
        for_each(count, count * n, |index| {
            // SAFETY: every target is another row of `out`, `[rows, n]`.
            let out = unsafe { out.part(targets[index] as usize * n, n) };
            out.iter_mut().enumerate().for_each(|(j, out)| *out = columns[j * count + index]);
        });
    }
}

/// For each matrix in turn its rows against their rows of `x`: `[n, count]`, column by column of the output, so that
/// each weight row is read (and unpacked) once.
fn columns<W: Matrix>(x: &[f32], weight: W, product: &Product) -> Vec<f32> {
    let Product { k, n, ref sources, .. } = *product;
    let (x, chunks) = (x.as_chunks::<LANES>().0, k.div_ceil(LANES));
    let mut columns = vec![0.0f32; sources.len() * n];
    let mut blocks = vec![];
    let mut rest = &mut columns[..];
    for (e, rows) in product.matrices() {
        let sources = &sources[rows];
        let matrix;
        (matrix, rest) = rest.split_at_mut(sources.len() * n);
        let rows = BLOCK.max(TASK / (k * sources.len())).next_multiple_of(TILE);
        for (i, columns) in matrix.chunks_mut(rows * sources.len()).enumerate() {
            blocks.push(Block { x, sources, weight, first: e * n + i * rows, columns, chunks });
        }
    }
    for_each_chunk(&mut blocks, 1, product.sources.len() * k * n, |_, block| {
        block.iter_mut().for_each(vectorize);
    });
    columns
}

/// Some rows of a matrix against all its rows of `x`; `columns` is `[rows, sources]`.
struct Block<'a, W> {
    x: &'a [Lanes],
    sources: &'a [u32],
    weight: W,
    /// The first of the weight's rows.
    first: usize,
    columns: &'a mut [f32],
    chunks: usize,
}

impl<W: Matrix> Work for &mut Block<'_, W> {
    #[inline(always)]
    fn run(self) {
        let Block { x, sources, weight, first, ref mut columns, chunks } = *self;
        let x = Inputs { x, sources, chunks };
        let m = sources.len();
        if m <= TILE {
            for (t, tile) in columns.chunks_mut(TILE * m).enumerate() {
                whole_or_single(|j| weight.row(first + t * TILE + j), x, tile);
            }
            return;
        }
        // Many rows of x: unpack TILE weight rows once, then reuse them from the cache.
        let mut unpacked = vec![[0.0f32; LANES]; TILE * chunks];
        for (t, tile) in columns.chunks_mut(TILE * m).enumerate() {
            for (j, lanes) in unpacked.chunks_exact_mut(chunks).take(tile.len() / m).enumerate() {
                let source = weight.row(first + t * TILE + j);
                for (chunk, lanes) in lanes.iter_mut().enumerate() {
                    *lanes = source.lanes(chunk);
                }
            }
            whole_or_single(|j| &unpacked[j * chunks..][..chunks], x, tile);
        }
    }
}

/// Rows `sources` of `x`, each of `chunks` lanes.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    x: &'a [Lanes],
    sources: &'a [u32],
    chunks: usize,
}

/// TILE weight rows at once if `out` `[rows, sources]` has that many, else one by one.
#[inline(always)]
fn whole_or_single<R: Row>(row: impl Fn(usize) -> R, x: Inputs, out: &mut [f32]) {
    let m = x.sources.len();
    if out.len() == TILE * m {
        return tiles([row(0), row(1), row(2), row(3)], x, out);
    }
    for (j, out) in out.chunks_exact_mut(m).enumerate() {
        tiles([row(j)], x, out);
    }
}

/// N weight rows against all rows of `x`; `out` is `[N, sources]`.
#[inline(always)]
fn tiles<R: Row, const N: usize>(rows: [R; N], x: Inputs, out: &mut [f32]) {
    let m = x.sources.len();
    let mut i = 0;
    while i + TILE <= m {
        tile::<R, N, TILE>(&rows, x, out, i);
        i += TILE;
    }
    // The rest together too: unpacking a weight costs more than a multiplication with it.
    match m - i {
        0 => {}
        1 => tile::<R, N, 1>(&rows, x, out, i),
        2 => tile::<R, N, 2>(&rows, x, out, i),
        _ => tile::<R, N, 3>(&rows, x, out, i),
    }
}

/// N weight rows against M rows of `x` from the `i`th, every sum in registers and in the order of a single one.
#[inline(always)]
fn tile<R: Row, const N: usize, const M: usize>(rows: &[R; N], x: Inputs, out: &mut [f32], i: usize) {
    let Inputs { x, sources, chunks } = x;
    let mut xs: [&[Lanes]; M] = [&[]; M];
    for a in 0..M {
        xs[a] = &x[sources[i + a] as usize * chunks..][..chunks];
    }
    let mut sums = [[[0.0f32; LANES]; M]; N];
    #[expect(clippy::needless_range_loop, reason = "the chunk indexes M rows of x and N of the weight alike")]
    for chunk in 0..chunks {
        let mut values = [[0.0; LANES]; M];
        for a in 0..M {
            values[a] = xs[a][chunk];
        }
        for b in 0..N {
            let weights = rows[b].lanes(chunk);
            for a in 0..M {
                fma(&mut sums[b][a], &weights, &values[a]);
            }
        }
    }
    for b in 0..N {
        for a in 0..M {
            out[b * sources.len() + i + a] = reduce(&sums[b][a]);
        }
    }
}
