//! Weights of each format as blocks of bfloat16 numbers.

use half::bf16;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{
    BLOCK, Block, Line,
    inputs::{Layout, arrange, round},
};
use crate::{
    lanes::LANES,
    linear::{
        Affine, Floats, Microscaled,
        affine::unpack,
        float::{doubled_e2m1, e4m3, e8m0},
    },
    scalar::Scalar,
};

/// Bytes of a row.
pub(super) type Part = (*const u8, usize);

const NOTHING: Part = (std::ptr::null(), 0);

/// `length` values from the `at`th on; they need not be there.
#[inline(always)]
fn part<T>(values: &[T], at: usize, length: usize) -> Part {
    (values.as_ptr().wrapping_add(at).cast(), length * size_of::<T>())
}

#[inline(always)]
fn floats_part(values: Floats, at: usize, length: usize) -> Part {
    match values {
        Floats::F32(values) => part(values, at, length),
        Floats::F16(values) => part(values, at, length),
        Floats::Bf16(values) => part(values, at, length),
    }
}

/// A weight, read block by block.
pub(super) trait Unpack: Copy + Sync {
    /// Inputs `64 * block ..` of row `row`, zeros past its end.
    fn block(self, row: usize, block: usize) -> Block;

    /// The same with AVX-512's instructions.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, DQ and BF16.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's.
        unsafe { load(self.block(row, block)) }
    }

    /// Block `block` of the rows from `first` on, two of `lines` for each.
    ///
    /// # Safety
    /// As [`block_avx512`](Unpack::block_avx512).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn column_avx512(self, first: usize, block: usize, lines: &mut [Line]) {
        // SAFETY: the caller's.
        unsafe { column(self, first, block, lines) }
    }

    /// Where each part of row `row` (codes, scales, biases) lies, and its bytes: for fetching it before it is needed.
    fn stored(self, row: usize) -> [Part; 3];

    /// Rows that lie in memory as tiles read them: where row `row` begins, if rows are whole blocks; rows are
    /// `2 * inputs` bytes apart.
    #[inline(always)]
    fn in_place(self, _row: usize) -> Option<*const u8> {
        None
    }
}

/// # Safety
/// As [`Unpack::block_avx512`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn column(weight: impl Unpack, first: usize, block: usize, lines: &mut [Line]) {
    for (r, lines) in lines.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: lines are 64 aligned bytes; the features are the caller's.
        unsafe {
            let [low, high] = weight.block_avx512(first + r, block);
            _mm512_store_si512(lines[0].0.as_mut_ptr().cast(), low);
            _mm512_store_si512(lines[1].0.as_mut_ptr().cast(), high);
        }
    }
}

/// Asks for share `share` of `shares` of all that is stored of `rows` rows from `row` on, which need not exist.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn fetch(weight: impl Unpack, row: usize, rows: usize, share: usize, shares: usize) {
    for (start, bytes) in weight.stored(row) {
        let all = bytes * rows;
        let (mut line, end) = ((all * share / shares).div_ceil(64), all * (share + 1) / shares);
        while line * 64 < end {
            // SAFETY: asking for memory that is not there does nothing.
            unsafe { _mm_prefetch(start.wrapping_add(line * 64).cast(), _MM_HINT_T0) };
            line += 1;
        }
    }
}

#[inline(always)]
fn lines(pairs: [u32; 32]) -> Block {
    let mut block = [Line::ZERO; 2];
    block[0].0.copy_from_slice(&pairs[..16]);
    block[1].0.copy_from_slice(&pairs[16..]);
    block
}

/// A matrix `[.., k]` of bfloat16 numbers.
#[derive(Clone, Copy)]
pub(super) struct DenseRows<'a> {
    pub values: &'a [bf16],
    pub k: usize,
}

impl Unpack for DenseRows<'_> {
    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Block {
        let row = &self.values[row * self.k..][..self.k][block * BLOCK..];
        let mut values = [0; BLOCK];
        if let Some(whole) = row.first_chunk::<BLOCK>() {
            for i in 0..BLOCK {
                values[i] = whole[i].to_bits() as u32;
            }
        } else {
            for (value, stored) in values.iter_mut().zip(row) {
                *value = stored.to_bits() as u32;
            }
        }
        lines(arrange(&values, Layout::Natural))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        let row = &self.values[row * self.k..][..self.k][block * BLOCK..];
        let masks = [first_bits(row.len()), first_bits(row.len().saturating_sub(32))];
        // SAFETY: the masks leave out what lies behind the row.
        unsafe {
            let start = row.as_ptr().cast::<i16>();
            [
                _mm512_maskz_loadu_epi16(masks[0], start),
                _mm512_maskz_loadu_epi16(masks[1], start.wrapping_add(32)),
            ]
        }
    }

    #[inline(always)]
    fn stored(self, row: usize) -> [Part; 3] {
        [part(self.values, row * self.k, self.k), NOTHING, NOTHING]
    }

    #[inline(always)]
    fn in_place(self, row: usize) -> Option<*const u8> {
        self.k.is_multiple_of(BLOCK).then(|| self.values[row * self.k..].as_ptr().cast())
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first_bits(n: usize) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

/// A matrix `[.., k]` in MLX's affine format: `bfloat16(code * scale + bias)`, rounded once.
#[derive(Clone, Copy)]
pub(super) struct AffineRows<'a, const BITS: usize> {
    weight: Affine<'a>,
    k: usize,
    /// Words of codes in a row.
    words: usize,
    /// Groups in a row, and blocks in a group as a shift; groups of 32 are half a block.
    groups: usize,
    shift: u32,
}

impl<'a, const BITS: usize> AffineRows<'a, BITS> {
    pub fn new(weight: Affine<'a>, k: usize) -> Self {
        let shift = (weight.group_size / BLOCK).max(1).trailing_zeros();
        AffineRows { weight, k, words: k * BITS / 32, groups: k / weight.group_size, shift }
    }

    /// Scale and bias of a group, counted over all rows.
    #[inline(always)]
    fn scale_and_bias(&self, group: usize) -> (f32, f32) {
        (self.weight.scales.at(group), self.weight.biases.at(group))
    }

    /// The groups of a block's halves.
    #[inline(always)]
    fn groups_of(&self, row: usize, block: usize) -> [usize; 2] {
        let row = row * self.groups;
        if self.weight.group_size == 32 {
            // A row may end with half a block.
            return [row + 2 * block, row + (2 * block + 1).min(self.groups - 1)];
        }
        [row + (block >> self.shift); 2]
    }
}

impl<const BITS: usize> Unpack for AffineRows<'_, BITS> {
    #[inline(always)]
    fn stored(self, row: usize) -> [Part; 3] {
        let Affine { codes, scales, biases, .. } = self.weight;
        let of_groups = |values| floats_part(values, row * self.groups, self.groups);
        [part(codes, row * self.words, self.words), of_groups(scales), of_groups(biases)]
    }

    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Block {
        let codes = &self.weight.codes[row * self.words..][..self.words];
        let [first, second] = self.groups_of(row, block);
        let scales = [self.scale_and_bias(first), self.scale_and_bias(second)];
        let mut values = [0; BLOCK];
        for chunk in 0..BLOCK / LANES {
            let at = block * (BLOCK / LANES) + chunk;
            if at * LANES >= self.k {
                break;
            }
            let codes = unpack::<BITS>(codes, at);
            let (scale, bias) = scales[chunk / 2];
            for i in 0..LANES {
                values[chunk * LANES + i] = round((codes[i] as f32).mul_add(scale, bias));
            }
        }
        lines(arrange(&values, if BITS == 4 { Layout::Fourths } else { Layout::Natural }))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        if BITS != 8 || (block + 1) * BLOCK > self.k {
            // SAFETY: the caller's.
            return unsafe { load(self.block(row, block)) };
        }
        let [first, second] = self.groups_of(row, block);
        let scales = [self.scale_and_bias(first), self.scale_and_bias(second)];
        // SAFETY: the processor has the features, and the block lies within the row.
        unsafe {
            let codes = self.weight.codes.as_ptr().add(row * self.words + block * 16).cast::<__m128i>();
            let mut lines = [_mm512_setzero_si512(); 2];
            for half in 0..2 {
                let (scale, bias) = (_mm512_set1_ps(scales[half].0), _mm512_set1_ps(scales[half].1));
                let mut values = [_mm512_setzero_ps(); 2];
                for i in 0..2 {
                    let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.add(2 * half + i)));
                    values[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), scale, bias);
                }
                let rounded = _mm512_cvtne2ps_pbh(values[1], values[0]);
                lines[half] = std::mem::transmute::<__m512bh, __m512i>(rounded);
            }
            lines
        }
    }
}

/// [`AffineRows`] of 4 bits, with scales of a known type.
#[derive(Clone, Copy)]
pub(super) struct NibbleRows<'a, S> {
    rows: AffineRows<'a, 4>,
    scales: &'a [S],
    biases: &'a [S],
}

impl<'a, S: Scalar> NibbleRows<'a, S> {
    pub fn new(weight: Affine<'a>, scales: &'a [S], biases: &'a [S], k: usize) -> Self {
        NibbleRows { rows: AffineRows::new(weight, k), scales, biases }
    }

    /// # Safety
    /// As [`Unpack::block_avx512`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn table(&self, group: usize) -> __m512i {
        // SAFETY: the caller's.
        unsafe { table(self.scales[group].broadcast_avx512(), self.biases[group].broadcast_avx512()) }
    }
}

impl<S: Scalar> Unpack for NibbleRows<'_, S> {
    #[inline(always)]
    fn stored(self, row: usize) -> [Part; 3] {
        let (at, groups) = (row * self.rows.groups, self.rows.groups);
        let codes = part(self.rows.weight.codes, row * self.rows.words, self.rows.words);
        [codes, part(self.scales, at, groups), part(self.biases, at, groups)]
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn column_avx512(self, first: usize, block: usize, lines: &mut [Line]) {
        let AffineRows { weight, k, groups, shift, .. } = self.rows;
        let whole = (block + 1) * BLOCK <= k && weight.group_size > 32 && groups.is_multiple_of(2);
        // SAFETY: the caller's; what the functions ask for was just checked.
        unsafe {
            match (whole, block >> shift & 1) {
                (true, 0) => nibble_column::<S, false>(self, first, block, lines),
                (true, _) => nibble_column::<S, true>(self, first, block, lines),
                _ => column(self, first, block, lines),
            }
        }
    }

    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Block {
        self.rows.block(row, block)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        // SAFETY: the processor has the features; a whole block lies within the row.
        unsafe {
            if (block + 1) * BLOCK > self.rows.k {
                return load(self.block(row, block));
            }
            let codes = self.rows.weight.codes.as_ptr().add(row * self.rows.words + block * 8);
            let [first, second] = self.rows.groups_of(row, block);
            let first = self.table(first);
            if self.rows.weight.group_size > 32 {
                return look_up(codes, first);
            }
            // The lower half of one table, the upper half of the other.
            let second = self.table(second);
            let tables = _mm512_mask_blend_epi64(0xf0, first, second);
            look_up_halves(codes, tables)
        }
    }
}

/// [`Unpack::column_avx512`] of whole blocks in groups of one block or more, an even number of groups to a row, `ODD` if
/// the block's group is the second of a pair. A function of its own, small enough to stay in registers: most of
/// decoding is this loop.
///
/// # Safety
/// The processor must have the features; the rows exist.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
#[inline(never)]
unsafe fn nibble_column<S: Scalar, const ODD: bool>(
    weight: NibbleRows<S>,
    first: usize,
    block: usize,
    lines: &mut [Line],
) {
    let AffineRows { weight: affine, words, groups, shift, .. } = weight.rows;
    let group = first * groups + (block >> shift);
    let mut codes = affine.codes.as_ptr().wrapping_add(first * words + block * 8);
    let mut scales = weight.scales.as_ptr().wrapping_add(group);
    let mut biases = weight.biases.as_ptr().wrapping_add(group);
    for lines in lines.as_chunks_mut::<2>().0 {
        // SAFETY: whole blocks lie within their rows, and groups likewise, pairs of them too; lines are 64 aligned bytes.
        unsafe {
            let table = table(S::broadcast_of_pair(scales, ODD), S::broadcast_of_pair(biases, ODD));
            let [low, high] = look_up(codes, table);
            _mm512_store_si512(lines[0].0.as_mut_ptr().cast(), low);
            _mm512_store_si512(lines[1].0.as_mut_ptr().cast(), high);
        }
        codes = codes.wrapping_add(words);
        scales = scales.wrapping_add(groups);
        biases = biases.wrapping_add(groups);
    }
}

/// The 16 weights of a group, computed once and then looked up; twice over.
///
/// # Safety
/// As [`Unpack::block_avx512`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn table(scale: __m512, bias: __m512) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let codes = _mm512_set_ps(
            15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0,
        );
        let values = _mm512_fmadd_ps(codes, scale, bias);
        std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(values, values))
    }
}

/// 64 codes of 4 bits to numbers of `table`, 16 of them twice over, in the order of [`Layout::Fourths`].
///
/// # Safety
/// As [`Unpack::block_avx512`]; there are 32 bytes at `codes`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn look_up(codes: *const u32, table: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let [even, odd] = indices(codes);
        // Only the lowest five bits of an index count, and the fifth does not matter.
        [_mm512_permutexvar_epi16(even, table), _mm512_permutexvar_epi16(odd, table)]
    }
}

/// As [`look_up`], the first half of the codes from the first 16 numbers and the other from the others.
///
/// # Safety
/// As [`look_up`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn look_up_halves(codes: *const u32, tables: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let [even, odd] = indices(codes);
        let group = _mm512_set_epi64(GROUP_1, GROUP_1, 0, 0, GROUP_1, GROUP_1, 0, 0);
        [
            _mm512_permutexvar_epi16(index(even, group), tables),
            _mm512_permutexvar_epi16(index(odd, group), tables),
        ]
    }
}

/// As [`look_up`], every 16 codes from 16 numbers of their own.
///
/// # Safety
/// As [`look_up`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn look_up_quarters(codes: *const u32, tables: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let [even, odd] = indices(codes);
        let (g2, g3) = (2 * GROUP_1, 3 * GROUP_1);
        let group = _mm512_set_epi64(g3, g2, GROUP_1, 0, g3, g2, GROUP_1, 0);
        [
            _mm512_permutex2var_epi16(tables[0], index(even, group), tables[1]),
            _mm512_permutex2var_epi16(tables[0], index(odd, group), tables[1]),
        ]
    }
}

/// 16, what is added to an index for the second group, in each of four 16-bit words.
#[cfg(target_arch = "x86_64")]
const GROUP_1: i64 = 0x0010_0010_0010_0010;

/// `codes & 15 | group`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn index(codes: __m512i, group: __m512i) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_ternarylogic_epi32(codes, _mm512_set1_epi16(15), group, 0xea) }
}

/// Words whose lowest four bits are the codes of a block, in the order of [`Layout::Fourths`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn indices(codes: *const u32) -> [__m512i; 2] {
    // SAFETY: the caller's.
    unsafe {
        // Twice the same 16 words of four codes: the first half keeps codes 0 and 1, the other codes 2 and 3.
        let words = _mm512_broadcast_i64x4(_mm256_loadu_si256(codes.cast()));
        let shift = |low: i16, high: i16| {
            _mm512_mask_blend_epi64(0xf0, _mm512_set1_epi16(low), _mm512_set1_epi16(high))
        };
        [_mm512_srlv_epi16(words, shift(0, 8)), _mm512_srlv_epi16(words, shift(4, 12))]
    }
}

/// # Safety
/// As [`Unpack::block_avx512`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load(block: Block) -> [__m512i; 2] {
    // SAFETY: a block is two aligned lines of 64 bytes.
    unsafe { [_mm512_load_si512(block[0].0.as_ptr().cast()), _mm512_load_si512(block[1].0.as_ptr().cast())] }
}

/// A matrix `[.., k]` of 4- or 8-bit floats; their products with the scale fit into bfloat16 unrounded.
#[derive(Clone, Copy)]
pub(super) struct FloatRows<'a, const BITS: usize, const GROUP: usize> {
    weight: Microscaled<'a>,
    k: usize,
}

impl<'a, const BITS: usize, const GROUP: usize> FloatRows<'a, BITS, GROUP> {
    pub fn new(weight: Microscaled<'a>, k: usize) -> Self {
        FloatRows { weight, k }
    }

    #[inline(always)]
    fn scale(&self, row: usize, group: usize) -> f32 {
        let byte = self.weight.scales[row * (self.k / GROUP) + group];
        if GROUP == 16 { e4m3(byte as u32) } else { e8m0(byte) }
    }
}

impl<const BITS: usize, const GROUP: usize> Unpack for FloatRows<'_, BITS, GROUP> {
    #[inline(always)]
    fn stored(self, row: usize) -> [Part; 3] {
        let (words, groups) = (self.k * BITS / 32, self.k / GROUP);
        let Microscaled { codes, scales, .. } = self.weight;
        [part(codes, row * words, words), part(scales, row * groups, groups), NOTHING]
    }

    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Block {
        let words = self.k * BITS / 32;
        let codes = &self.weight.codes[row * words..][..words];
        let mut values = [0; BLOCK];
        for chunk in 0..BLOCK / LANES {
            let at = block * (BLOCK / LANES) + chunk;
            if at * LANES >= self.k {
                break;
            }
            let scale = self.scale(row, at * LANES / GROUP);
            let codes = unpack::<BITS>(codes, at);
            for i in 0..LANES {
                let value =
                    if BITS == 4 { doubled_e2m1(codes[i]) * (scale * 0.5) } else { e4m3(codes[i]) * scale };
                values[chunk * LANES + i] = round(value);
            }
        }
        lines(arrange(&values, if BITS == 4 { Layout::Fourths } else { Layout::Natural }))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        // SAFETY: the processor has the features; a whole block lies within the row.
        unsafe {
            if BITS != 4 || (block + 1) * BLOCK > self.k {
                return load(self.block(row, block));
            }
            let codes = self.weight.codes.as_ptr().add(row * (self.k / 8) + block * 8);
            let values = _mm512_set_ps(
                -6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, -0.0, 6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.0,
            );
            let mut tables = [_mm512_setzero_si512(); 2];
            let first = block * BLOCK / GROUP;
            let mut scaled = [_mm512_setzero_ps(); BLOCK / 16];
            for i in 0..BLOCK / GROUP {
                scaled[i] = _mm512_mul_ps(values, _mm512_set1_ps(self.scale(row, first + i)));
            }
            for i in 0..2 {
                let pair = _mm512_cvtne2ps_pbh(scaled[2 * i + 1], scaled[2 * i]);
                tables[i] = std::mem::transmute::<__m512bh, __m512i>(pair);
            }
            if GROUP == 32 { look_up_halves(codes, tables[0]) } else { look_up_quarters(codes, tables) }
        }
    }
}
