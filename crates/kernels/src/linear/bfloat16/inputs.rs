//! Rows of `x`, rounded and laid out as the kernels read them.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::BLOCK;
use crate::{
    linear::{lines::Line, product::Product, scratch::Scratch},
    parallel::for_each,
    scalar::Scalar,
    shared::Parts,
    simd::{SimdLevel, Work, simd_level, vectorize},
};

/// The rows of `x` of a product, sorted by matrix.
pub(super) struct Inputs {
    /// Row after row, or for tiles up to 16 rows interleaved.
    lines: Scratch,
    /// Lines of a row.
    width: usize,
}

/// Rows that tiles interleave.
pub(super) const TILE: usize = 16;

impl Inputs {
    pub fn new(x: &[f32], product: &Product) -> Inputs {
        let width = product.k.div_ceil(BLOCK) * 2;
        let mut lines = Scratch::new(product.sources.len() * width);
        fill(x, product, &mut lines, width);
        Inputs { lines, width }
    }

    /// Those that are rows `range` of the product's `sources`.
    pub fn of(&self, range: Range<usize>) -> &[Line] {
        &self.lines[range.start * self.width..range.end * self.width]
    }
}

fn fill(x: &[f32], product: &Product, lines: &mut [Line], width: usize) {
    let group = if simd_level() == SimdLevel::Amx { TILE } else { 1 };
    let mut pieces = vec![];
    for (_, rows) in product.matrices() {
        pieces.extend(rows.clone().step_by(group).map(|start| start..rows.end.min(start + group)));
    }
    let (work, lines) = (2 * lines.len() * 16, Parts::new(lines));
    for_each(pieces.len(), work, |i| {
        let Range { start, end } = pieces[i].clone();
        // SAFETY: pieces are ranges of rows that do not overlap.
        let lines = unsafe { lines.part(start * width, (end - start) * width) };
        let rows = Rows { x, k: product.k, sources: &product.sources[start..end], lines };
        #[cfg(target_arch = "x86_64")]
        if simd_level() >= SimdLevel::Avx512Bf16 {
            // SAFETY: the processor has the features.
            return unsafe { rows.run_avx512() };
        }
        vectorize(rows);
    });
}

/// Some rows to be rounded, and interleaved if they are several, which tiles alone ask for: pair `p` of all of them before pair `p + 1`.
struct Rows<'a> {
    x: &'a [f32],
    k: usize,
    sources: &'a [u32],
    lines: &'a mut [Line],
}

#[cfg(target_arch = "x86_64")]
impl Rows<'_> {
    /// As `run`, with AVX-512's conversions.
    ///
    /// # Safety
    /// The processor must have the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn run_avx512(self) {
        let Rows { x, k, sources, lines } = self;
        let rows = sources.len();
        let mut turned = [[Line::ZERO; TILE]; 2];
        for block in 0..k.div_ceil(BLOCK) {
            for (r, &source) in sources.iter().enumerate() {
                let values = block_of(&x[source as usize * k..][..k], block);
                // SAFETY: the features are enabled; lines are 64 aligned bytes.
                unsafe {
                    let pairs = rounded_avx512(&values);
                    for half in 0..2 {
                        let line =
                            if rows == 1 { &mut lines[2 * block + half] } else { &mut turned[half][r] };
                        _mm512_store_si512(line.0.as_mut_ptr().cast(), pairs[half]);
                    }
                }
            }
            if rows > 1 {
                let (first, second) = lines[block * 2 * rows..][..2 * rows].split_at_mut(rows);
                for (turned, lines) in turned.iter().zip([first, second]) {
                    if rows == TILE {
                        // SAFETY: the features are enabled.
                        lines.copy_from_slice(&unsafe { crate::linear::lines::transposed(turned) });
                    } else {
                        interleave(turned, rows, lines);
                    }
                }
            }
        }
    }
}

/// # Safety
/// The processor must have AVX-512 F, BW and BF16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rounded_avx512(values: &[f32; BLOCK]) -> [__m512i; 2] {
    // SAFETY: the caller's; there are 64 values.
    unsafe {
        let mut v = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            v[i] = _mm512_loadu_ps(values.as_ptr().add(16 * i));
        }
        let low = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(v[1], v[0]));
        let high = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(v[3], v[2]));
        [low, high]
    }
}

impl Work for Rows<'_> {
    #[inline(always)]
    fn run(self) {
        let Rows { x, k, sources, lines } = self;
        let &[source] = sources else { unreachable!("tiles alone want rows interleaved") };
        let row = &x[source as usize * k..][..k];
        for (block, lines) in lines.chunks_exact_mut(2).enumerate() {
            let values = block_of(row, block);
            let mut rounded = [0; BLOCK];
            for i in 0..BLOCK {
                rounded[i] = round(values[i]);
            }
            let pairs = pairs(&rounded);
            lines[0].0.copy_from_slice(&pairs[..16]);
            lines[1].0.copy_from_slice(&pairs[16..]);
        }
    }
}

/// Block `block` of a row, filled up with zeros.
#[inline(always)]
fn block_of(row: &[f32], block: usize) -> [f32; BLOCK] {
    let rest = &row[block * BLOCK..];
    let mut values = [0.0; BLOCK];
    match rest.first_chunk::<BLOCK>() {
        Some(whole) => values = *whole,
        None => values[..rest.len()].copy_from_slice(rest),
    }
    values
}

/// A line of each of `rows` rows, fewer than a tile's, to pair 0 of all rows, pair 1 of all rows and so on.
#[cfg(target_arch = "x86_64")]
fn interleave(lines: &[Line; TILE], rows: usize, out: &mut [Line]) {
    for i in 0..16 * rows {
        out[i / 16].0[i % 16] = lines[i % rows].0[i / rows];
    }
}

/// The bits of the nearest bfloat16, ties to even.
#[inline(always)]
pub(super) fn round(value: f32) -> u32 {
    <bf16 as Scalar>::from_f32(value).to_bits() as u32
}

/// 64 numbers as the pairs of a block.
#[inline(always)]
pub(super) fn pairs(values: &[u32; BLOCK]) -> [u32; 32] {
    let mut pairs = [0; 32];
    for i in 0..32 {
        pairs[i] = values[2 * i] | values[2 * i + 1] << 16;
    }
    pairs
}
