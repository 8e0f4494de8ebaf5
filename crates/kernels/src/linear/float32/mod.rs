//! The product in float32: sixteen lanes along `k`, summed as a fixed tree at the end, whatever the
//! format.

mod matrix;

use super::{
    affine::Affine,
    microscaled::FloatFormat,
    row_groups::RowGroups,
    weight::{Floats, Weight},
};
use crate::{
    disjoint::DisjointMut,
    lanes::{LANES, Lanes, fma, reduce},
    parallel::{for_each, for_each_chunk},
    scalar::widen,
    simd::{WithSimd, dispatch},
};
use matrix::{AffineMatrix, DenseMatrix, MicroscaledMatrix, WeightMatrix, WeightRow};

/// Weight rows, and rows of `x`, in a register tile.
const REGISTER_TILE: usize = 4;
/// Fewest weight rows of a task.
const MIN_TASK_ROWS: usize = 32;
/// Fewest multiply-adds of a task.
const MIN_TASK_WORK: usize = 32 * 1024;

/// `out` `[rows, n]`, in the order of the rows in `groups.targets`.
pub(super) fn multiply(x: &[f32], weight: Weight, out: &mut [f32], groups: &RowGroups) {
    with_matrix(weight, groups.k, Multiply { x, out, groups });
}

/// The numbers that a weight's rows of `k` stand for, as products in float32 multiply them.
///
/// # Panics
/// If `out` is not `[rows, k]`, or the weight is packed for products of integers.
pub fn float32_values(weight: Weight, out: &mut [f32], k: usize) {
    weight.check(out.len() / k, k);
    with_matrix(weight, k, Unpack { out, k });
}

/// Work on the rows of a weight of any format.
trait WithMatrix {
    fn run<W: WeightMatrix>(self, weight: W);
}

struct Multiply<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    groups: &'a RowGroups<'a>,
}

impl WithMatrix for Multiply<'_> {
    fn run<W: WeightMatrix>(self, weight: W) {
        multiply_matrix(self.x, weight, self.out, self.groups);
    }
}

struct Unpack<'a> {
    out: &'a mut [f32],
    k: usize,
}

impl WithMatrix for Unpack<'_> {
    fn run<W: WeightMatrix>(self, weight: W) {
        for_each_chunk(self.out, self.k, self.out.len(), |row, out| {
            for (chunk, out) in out.chunks_mut(LANES).enumerate() {
                out.copy_from_slice(&weight.row(row).lanes(chunk)[..out.len()]);
            }
        });
    }
}

fn with_matrix(weight: Weight, k: usize, work: impl WithMatrix) {
    match weight {
        Weight::Dense(Floats::F32(values)) => work.run(DenseMatrix { values, k }),
        Weight::Dense(Floats::F16(values)) => work.run(DenseMatrix { values, k }),
        Weight::Dense(Floats::Bf16(values)) => work.run(DenseMatrix { values, k }),
        Weight::Affine(weight) => with_affine(weight, k, work),
        Weight::Microscaled(weight) => match weight.format {
            FloatFormat::Mxfp4 => work.run(MicroscaledMatrix::<4, 32>::new(weight, k)),
            FloatFormat::Mxfp8 => work.run(MicroscaledMatrix::<8, 32>::new(weight, k)),
            FloatFormat::Nvfp4 => work.run(MicroscaledMatrix::<4, 16>::new(weight, k)),
        },
        Weight::Packed(_) => panic!("a weight packed for products of integers, in float32"),
    }
}

fn with_affine(weight: Affine, k: usize, work: impl WithMatrix) {
    let Affine { codes, scales, biases, group_size, bits } = weight;
    let (scales, biases) = (&scales.to_f32()[..], &biases.to_f32()[..]);
    let (words, groups, chunks_per_group) = (k * bits / 32, k / group_size, group_size / LANES);
    macro_rules! with_bits {
        ($($b:literal)*) => {
            match bits {
                $($b => work.run(AffineMatrix::<$b> { codes, scales, biases, words, groups, chunks_per_group }),)*
                _ => unreachable!("checked"),
            }
        };
    }
    with_bits!(2 3 4 5 6 8);
}

/// `weight` holds the stacked matrices, `[matrices * n, k]`.
fn multiply_matrix<W: WeightMatrix>(x: &[f32], weight: W, out: &mut [f32], groups: &RowGroups) {
    let RowGroups { k, n, ref targets, .. } = *groups;
    let inputs = groups.num_inputs();
    if out.is_empty() || k == 0 {
        return out.fill(0.0);
    }
    assert!(x.len() >= inputs * k, "x is not [{inputs}, {k}]");
    let columns = columns(&widen(x, k, LANES), weight, groups);
    let out = DisjointMut::new(out);
    for (_, rows) in groups.matrices() {
        let (columns, count) = (&columns[rows.start * n..rows.end * n], rows.len());
        let targets = &targets[rows];
        for_each(count, count * n, |index| {
            // SAFETY: every target is a distinct row of `out`, `[rows, n]`.
            let out = unsafe { out.part(targets[index] as usize * n, n) };
            out.iter_mut().enumerate().for_each(|(j, out)| *out = columns[j * count + index]);
        });
    }
}

/// For each matrix, its rows times their rows of `x`: `[n, count]`, transposed so that each weight
/// row is read (and unpacked) once.
fn columns<W: WeightMatrix>(x: &[f32], weight: W, groups: &RowGroups) -> Vec<f32> {
    let RowGroups { k, n, ref sources, .. } = *groups;
    let (x, chunks) = (x.as_chunks::<LANES>().0, k.div_ceil(LANES));
    let mut columns = vec![0.0f32; sources.len() * n];
    let mut blocks = vec![];
    let mut rest = &mut columns[..];
    for (e, rows) in groups.matrices() {
        let sources = &sources[rows];
        let matrix;
        (matrix, rest) = rest.split_at_mut(sources.len() * n);
        let rows = MIN_TASK_ROWS.max(MIN_TASK_WORK / (k * sources.len())).next_multiple_of(REGISTER_TILE);
        for (i, columns) in matrix.chunks_mut(rows * sources.len()).enumerate() {
            blocks.push(RowBlock { x, sources, weight, first: e * n + i * rows, columns, chunks });
        }
    }
    for_each_chunk(&mut blocks, 1, groups.sources.len() * k * n, |_, block| {
        block.iter_mut().for_each(dispatch);
    });
    columns
}

/// Some rows of a matrix times all its rows of `x`; `columns` is `[rows, sources]`.
struct RowBlock<'a, W> {
    x: &'a [Lanes],
    sources: &'a [u32],
    weight: W,
    /// The first of the weight's rows.
    first: usize,
    columns: &'a mut [f32],
    chunks: usize,
}

impl<W: WeightMatrix> WithSimd for &mut RowBlock<'_, W> {
    #[inline(always)]
    fn run(self) {
        let RowBlock { x, sources, weight, first, ref mut columns, chunks } = *self;
        let x = InputRows { x, sources, chunks };
        let m = sources.len();
        if m <= REGISTER_TILE {
            for (t, tile) in columns.chunks_mut(REGISTER_TILE * m).enumerate() {
                whole_or_single(|j| weight.row(first + t * REGISTER_TILE + j), x, tile);
            }
            return;
        }
        // Many rows of x: unpack a tile of weight rows once, then reuse it from the cache.
        let mut unpacked = vec![[0.0f32; LANES]; REGISTER_TILE * chunks];
        for (t, tile) in columns.chunks_mut(REGISTER_TILE * m).enumerate() {
            for (j, lanes) in unpacked.chunks_exact_mut(chunks).take(tile.len() / m).enumerate() {
                let source = weight.row(first + t * REGISTER_TILE + j);
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
struct InputRows<'a> {
    x: &'a [Lanes],
    sources: &'a [u32],
    chunks: usize,
}

/// A register tile of weight rows at once if `out` `[rows, sources]` has that many, else one by
/// one.
#[inline(always)]
fn whole_or_single<R: WeightRow>(row: impl Fn(usize) -> R, x: InputRows, out: &mut [f32]) {
    let m = x.sources.len();
    if out.len() == REGISTER_TILE * m {
        return tiles([row(0), row(1), row(2), row(3)], x, out);
    }
    for (j, out) in out.chunks_exact_mut(m).enumerate() {
        tiles([row(j)], x, out);
    }
}

/// N weight rows times all rows of `x`; `out` is `[N, sources]`.
#[inline(always)]
fn tiles<R: WeightRow, const N: usize>(rows: [R; N], x: InputRows, out: &mut [f32]) {
    let m = x.sources.len();
    let mut i = 0;
    while i + REGISTER_TILE <= m {
        tile::<R, N, REGISTER_TILE>(&rows, x, out, i);
        i += REGISTER_TILE;
    }
    // The rest together too: unpacking a weight costs more than multiplying with it.
    match m - i {
        0 => {}
        1 => tile::<R, N, 1>(&rows, x, out, i),
        2 => tile::<R, N, 2>(&rows, x, out, i),
        _ => tile::<R, N, 3>(&rows, x, out, i),
    }
}

/// N weight rows times M rows of `x` from row `i`, each sum in a register and in the order of a
/// single one.
#[inline(always)]
fn tile<R: WeightRow, const N: usize, const M: usize>(
    rows: &[R; N],
    x: InputRows,
    out: &mut [f32],
    i: usize,
) {
    let InputRows { x, sources, chunks } = x;
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
