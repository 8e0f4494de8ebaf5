//! The product all weight formats share: rows of `x` against the rows of one or several matrices.

use super::{Matrix, Row};
use crate::{
    lanes::{LANES, Lanes, fma, reduce},
    parallel::for_each_chunk,
    scalar::{Scalar, widen},
    simd::{Work, vectorize},
};

/// Weight rows computed together, and rows of `x` in a register tile.
const TILE: usize = 4;
/// Fewest weight rows one thread takes at a time.
const BLOCK: usize = 32;
/// Multiply-adds worth handing to a thread.
const TASK: usize = 32 * 1024;

/// What is multiplied with what: every row of the output belongs to one of several matrices `[n, k]`.
pub(crate) struct Product {
    pub k: usize,
    pub n: usize,
    /// Of each output row, in the output's order.
    places: Vec<Place>,
    /// The row of `x` behind each output row, sorted by matrix.
    sources: Vec<u32>,
    /// Matrix `e` meets `sources[starts[e]..starts[e + 1]]`.
    starts: Vec<usize>,
}

/// Output row `index` of the `count` that share a matrix, the first of which is the `start`th of all once sorted.
struct Place {
    start: usize,
    count: usize,
    index: usize,
}

impl Product {
    /// Every row of `x` with the same matrix; `outputs` is the length of the output.
    pub fn one_matrix(outputs: usize, k: usize, n: usize) -> Product {
        let count = outputs / n.max(1);
        let places = (0..count).map(|index| Place { start: 0, count, index }).collect();
        Product { k, n, places, sources: (0..count as u32).collect(), starts: vec![0, count] }
    }

    /// Output row `r` belongs to matrix `matrices[r]` of `count` and row `r / per_row` of `x`.
    pub fn grouped(matrices: &[u32], per_row: usize, count: usize, k: usize, n: usize) -> Product {
        assert!(per_row > 0 && matrices.len().is_multiple_of(per_row), "{per_row} outputs per row of x");
        let mut starts = vec![0; count + 1];
        for &matrix in matrices {
            assert!((matrix as usize) < count, "expert {matrix} of {count} does not exist");
            starts[matrix as usize + 1] += 1;
        }
        for e in 0..count {
            starts[e + 1] += starts[e];
        }
        let mut sources = vec![0; matrices.len()];
        let mut taken = vec![0; count];
        let place = |(r, &matrix): (usize, &u32)| {
            let (e, index) = (matrix as usize, taken[matrix as usize]);
            taken[e] += 1;
            sources[starts[e] + index] = (r / per_row) as u32;
            Place { start: starts[e], count: starts[e + 1] - starts[e], index }
        };
        let places = matrices.iter().enumerate().map(place).collect();
        Product { k, n, places, sources, starts }
    }

    /// Rows of all matrices together.
    pub fn weight_rows(&self) -> usize {
        (self.starts.len() - 1) * self.n
    }

    fn inputs(&self) -> usize {
        self.sources.iter().max().map_or(0, |last| *last as usize + 1)
    }
}

/// `weight` holds the matrices one below the other, `[matrices * n, k]`.
pub(crate) fn multiply<X: Scalar, W: Matrix>(x: &[X], weight: W, out: &mut [X], product: &Product) {
    let Product { k, n, ref places, .. } = *product;
    let (inputs, rows) = (product.inputs(), places.len());
    assert_eq!(out.len(), rows * n, "out is not [{rows}, {n}]");
    if out.is_empty() || k == 0 {
        return out.fill(X::default());
    }
    assert_eq!(x.len(), inputs * k, "x is not [{inputs}, {k}]");
    let columns = columns(&widen(x, k, LANES), weight, product);
    for_each_chunk(out, n, rows * n, |r, out| {
        let Place { start, count, index } = places[r];
        let columns = &columns[start * n..][..count * n];
        if count == 1 {
            out.iter_mut().zip(columns).for_each(|(out, &value)| *out = X::from_f32(value));
        } else {
            out.iter_mut().enumerate().for_each(|(j, out)| *out = X::from_f32(columns[j * count + index]));
        }
    });
}

/// For each matrix in turn its rows against their rows of `x`: `[n, count]`, column by column of the output, so that
/// each weight row is read (and unpacked) once.
fn columns<W: Matrix>(x: &[f32], weight: W, product: &Product) -> Vec<f32> {
    let Product { k, n, ref sources, ref starts, .. } = *product;
    let (x, chunks) = (x.as_chunks::<LANES>().0, k.div_ceil(LANES));
    let mut columns = vec![0.0f32; sources.len() * n];
    let mut blocks = vec![];
    let mut rest = &mut columns[..];
    for (e, bounds) in starts.windows(2).enumerate().filter(|(_, bounds)| bounds[0] < bounds[1]) {
        let sources = &sources[bounds[0]..bounds[1]];
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
