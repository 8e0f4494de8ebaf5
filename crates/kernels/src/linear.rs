//! `x · Wᵀ` for dense and affine-quantised weights, row-invariant.

use crate::{
    lanes::{LANES, Lanes, fma, load_scalar, reduce},
    parallel::for_each_chunk,
    scalar::{Scalar, widen},
    simd::{Work, vectorize},
};

/// Weight rows computed together, and rows of `x` in a register tile.
const TILE: usize = 4;
/// Weight rows one thread takes at a time.
const BLOCK: usize = 32;

/// A matrix `[out, in]` in MLX's affine format: value = code * scale + bias.
#[derive(Clone, Copy)]
pub struct Affine<'a, S> {
    /// Each row one little-endian bit stream of codes.
    pub codes: &'a [u32],
    /// `[out, in / group_size]`, like `biases`.
    pub scales: &'a [S],
    pub biases: &'a [S],
    /// A multiple of 16.
    pub group_size: usize,
    /// 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
}

/// `out[m, n] = x[m, k] · weight[n, k]ᵀ`, accumulated in float32.
pub fn linear<X: Scalar, W: Scalar>(x: &[X], weight: &[W], out: &mut [X], k: usize, n: usize) {
    assert_eq!(weight.len(), k * n, "weight is not [{n}, {k}]");
    let source = |row: usize| Dense { values: &weight[row * k..][..k] };
    multiply(x, source, out, k, n);
}

/// As [`linear`], for a quantised weight.
pub fn quantized_linear<X: Scalar, S: Scalar>(x: &[X], weight: Affine<S>, out: &mut [X], k: usize, n: usize) {
    let Affine { codes, scales, biases, group_size, bits } = weight;
    let (words, groups) = (k * bits / 32, k / group_size);
    assert!(
        group_size.is_multiple_of(LANES) && k.is_multiple_of(group_size),
        "groups of {group_size} in {k}"
    );
    assert_eq!((codes.len(), scales.len(), biases.len()), (n * words, n * groups, n * groups));
    macro_rules! with_bits {
        ($($b:literal)*) => {
            match bits {
                $($b => multiply(
                    x,
                    |row| Quantized::<S, $b> {
                        codes: &codes[row * words..][..words],
                        scales: &scales[row * groups..][..groups],
                        biases: &biases[row * groups..][..groups],
                        chunks_per_group: group_size / LANES,
                    },
                    out,
                    k,
                    n,
                ),)*
                _ => panic!("{bits} bits per weight; 2, 3, 4, 5, 6 and 8 exist"),
            }
        };
    }
    with_bits!(2 3 4 5 6 8);
}

/// One row of a weight, read 16 values at a time.
trait Row: Copy + Sync {
    fn lanes(&self, chunk: usize) -> Lanes;
}

#[derive(Clone, Copy)]
struct Dense<'a, W> {
    values: &'a [W],
}

impl<W: Scalar> Row for Dense<'_, W> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        load_scalar(self.values, chunk)
    }
}

/// A row already in lanes.
#[derive(Clone, Copy)]
struct Unpacked<'a> {
    lanes: &'a [Lanes],
}

impl Row for Unpacked<'_> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        self.lanes[chunk]
    }
}

#[derive(Clone, Copy)]
struct Quantized<'a, S, const BITS: usize> {
    codes: &'a [u32],
    scales: &'a [S],
    biases: &'a [S],
    chunks_per_group: usize,
}

impl<S: Scalar, const BITS: usize> Row for Quantized<'_, S, BITS> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        let codes = unpack::<BITS>(self.codes, chunk);
        let group = chunk / self.chunks_per_group;
        let (scale, bias) = (self.scales[group].to_f32(), self.biases[group].to_f32());
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = (codes[i] as f32).mul_add(scale, bias);
        }
        lanes
    }
}

/// The 16 codes of a chunk, which start `2 * BITS` bytes after the previous chunk's.
#[inline(always)]
fn unpack<const BITS: usize>(row: &[u32], chunk: usize) -> [u32; LANES] {
    // Where each code lies is a constant of its lane, so all this becomes a few shuffles and shifts.
    let mask = (1u32 << BITS) - 1;
    if let 2 | 4 | 8 = BITS {
        let words = &row[chunk * BITS / 2..][..BITS / 2];
        let spread: [u32; LANES] = std::array::from_fn(|i| words[i * BITS / 32]);
        return std::array::from_fn(|i| (spread[i] >> (i * BITS % 32)) & mask);
    }
    // A chunk of 3 or 5 bits may begin in the middle of a word.
    let start = chunk * LANES * BITS / 32;
    let word = |i: usize| row.get(start + i).copied().unwrap_or(0) as u128;
    let stream = (word(0) | word(1) << 32 | word(2) << 64 | word(3) << 96) >> (chunk * LANES * BITS % 32);
    std::array::from_fn(|i| (stream >> (i * BITS)) as u32 & mask)
}

/// Computes `out` column by column of W, so that each weight row is read (and unpacked) once for all of `x`.
fn multiply<X: Scalar, R: Row>(x: &[X], row: impl Fn(usize) -> R + Sync, out: &mut [X], k: usize, n: usize) {
    if out.is_empty() || k == 0 {
        return out.fill(X::default());
    }
    let m = out.len() / n;
    assert_eq!((x.len(), out.len()), (m * k, m * n), "x is not [{m}, {k}] or out not [{m}, {n}]");
    let x = widen(x, k, LANES);
    let mut columns = vec![0.0f32; n * m];
    for_each_chunk(&mut columns, BLOCK * m, m * k * n, |block, columns| {
        vectorize(Block { x: &x, row: &row, first: block * BLOCK, columns, m, chunks: k.div_ceil(LANES) });
    });
    if m == 1 {
        out.iter_mut().zip(&columns).for_each(|(out, &value)| *out = X::from_f32(value));
        return;
    }
    for_each_chunk(out, n, m * n, |i, out| {
        out.iter_mut().enumerate().for_each(|(j, out)| *out = X::from_f32(columns[j * m + i]));
    });
}

/// Some rows of W against all of `x`; `columns` is `[rows, m]`.
struct Block<'a, F> {
    x: &'a [f32],
    row: &'a F,
    first: usize,
    columns: &'a mut [f32],
    m: usize,
    chunks: usize,
}

impl<R: Row, F: Fn(usize) -> R> Work for Block<'_, F> {
    #[inline(always)]
    fn run(self) {
        let Block { x, row, first, columns, m, chunks } = self;
        if m <= TILE {
            for (t, tile) in columns.chunks_mut(TILE * m).enumerate() {
                whole_or_single(|j| row(first + t * TILE + j), x, tile, m, chunks);
            }
            return;
        }
        // Many rows of x: unpack TILE weight rows once, then reuse them from the cache.
        let mut unpacked = vec![[0.0f32; LANES]; TILE * chunks];
        for (t, tile) in columns.chunks_mut(TILE * m).enumerate() {
            for (j, lanes) in unpacked.chunks_exact_mut(chunks).take(tile.len() / m).enumerate() {
                let source = row(first + t * TILE + j);
                lanes.iter_mut().enumerate().for_each(|(chunk, lanes)| *lanes = source.lanes(chunk));
            }
            whole_or_single(|j| Unpacked { lanes: &unpacked[j * chunks..][..chunks] }, x, tile, m, chunks);
        }
    }
}

/// TILE weight rows at once if `out` `[rows, m]` has that many, else one by one.
#[inline(always)]
fn whole_or_single<R: Row>(row: impl Fn(usize) -> R, x: &[f32], out: &mut [f32], m: usize, chunks: usize) {
    if out.len() == TILE * m {
        return tiles([row(0), row(1), row(2), row(3)], x, out, m, chunks);
    }
    for (j, out) in out.chunks_exact_mut(m).enumerate() {
        tiles([row(j)], x, out, m, chunks);
    }
}

/// N weight rows against all rows of `x`; `out` is `[N, m]`.
#[inline(always)]
fn tiles<R: Row, const N: usize>(rows: [R; N], x: &[f32], out: &mut [f32], m: usize, chunks: usize) {
    let mut i = 0;
    while i + TILE <= m {
        tile::<R, N, TILE>(&rows, x, out, m, i, chunks);
        i += TILE;
    }
    while i < m {
        tile::<R, N, 1>(&rows, x, out, m, i, chunks);
        i += 1;
    }
}

/// N weight rows against M rows of `x` from row `i`, every sum in registers and in the order of a single one.
#[inline(always)]
fn tile<R: Row, const N: usize, const M: usize>(
    rows: &[R; N],
    x: &[f32],
    out: &mut [f32],
    m: usize,
    i: usize,
    chunks: usize,
) {
    let x = x.as_chunks::<LANES>().0;
    let xs: [&[Lanes]; M] = std::array::from_fn(|a| &x[(i + a) * chunks..][..chunks]);
    let mut sums = [[[0.0f32; LANES]; M]; N];
    #[expect(clippy::needless_range_loop, reason = "the chunk indexes M rows of x and N of the weight alike")]
    for chunk in 0..chunks {
        let values: [Lanes; M] = std::array::from_fn(|a| xs[a][chunk]);
        for b in 0..N {
            let weights = rows[b].lanes(chunk);
            for a in 0..M {
                fma(&mut sums[b][a], &weights, &values[a]);
            }
        }
    }
    for b in 0..N {
        for a in 0..M {
            out[b * m + i + a] = reduce(&sums[b][a]);
        }
    }
}
