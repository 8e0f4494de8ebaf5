//! Packed weights with AVX-512: unpacked into a panel, or multiplied without unpacking for few rows
//! of `x`.

use std::{arch::x86_64::*, ops::Range};

use super::integer::add_group;
use crate::{
    cache_line::CacheLine,
    linear::{
        FloatType, Packed, PackedLayout,
        integer::{
            inputs::InputTile,
            packed::PackedRows,
            panel::{K_BLOCK, UnpackedPanel},
        },
        tiling::PANEL_ROWS,
    },
    x86::unpack::four,
};

/// Rows of `x` at a time: the sums of more do not fit in registers.
const MAX_ROWS: usize = 8;
/// Prefetch distance in cache lines, longer than the hardware prefetcher's.
const PREFETCH_LINES: usize = 72;

/// Unpacks `inputs` of `rows` rows, whole blocks, from row `first`.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(crate) unsafe fn unpack(
    weight: Packed,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut UnpackedPanel,
) {
    let packing = weight.packing();
    for half in 0..rows / 16 {
        let groups = inputs.start / packing.group_size..inputs.end / packing.group_size;
        let lines = weight.groups(first + 16 * half, groups);
        // SAFETY: the features are enabled.
        unsafe {
            match packing.bits {
                2 => unpack_half::<4>(packing, lines, half, panel),
                4 => unpack_half::<2>(packing, lines, half, panel),
                _ => unpack_half::<1>(packing, lines, half, panel),
            }
        }
    }
}

#[inline(always)]
unsafe fn unpack_half<const FOURS: usize>(
    packing: PackedLayout,
    lines: &[CacheLine],
    half: usize,
    panel: &mut UnpackedPanel,
) {
    let words = packing.group_words();
    for (g, lines) in lines.chunks_exact(packing.group_lines()).enumerate() {
        let to = &mut panel.codes[g * words * FOURS..][..words * FOURS];
        // SAFETY: the caller has checked the features; lines are 64 aligned bytes.
        unsafe {
            for i in 0..words {
                let word = load_and_prefetch(&lines[i]);
                for s in 0..FOURS {
                    let four = four::<_, FOURS>(word, s);
                    _mm512_store_si512(to[i * FOURS + s][half].0.as_mut_ptr().cast(), four);
                }
            }
            let [scale, bias] = floats(packing.floats, lines[words..].as_ptr());
            _mm512_store_ps(panel.scales[g][half].as_mut_ptr(), scale);
            _mm512_store_ps(panel.biases[g][half].as_mut_ptr(), bias);
        }
    }
}

/// Sums of all products of 16 weight rows with a tile's rows, as half a panel.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn multiply(lines: PackedRows, tile: InputTile, sums: &mut [[f32; PANEL_ROWS]]) {
    // SAFETY: the features are enabled.
    unsafe {
        match (lines.packing.bits, tile.planes) {
            (2, 1) => multiply_bits::<4, 1>(lines, tile, sums),
            (2, _) => multiply_bits::<4, 2>(lines, tile, sums),
            (4, 1) => multiply_bits::<2, 1>(lines, tile, sums),
            (4, _) => multiply_bits::<2, 2>(lines, tile, sums),
            (_, 1) => multiply_bits::<1, 1>(lines, tile, sums),
            _ => multiply_bits::<1, 2>(lines, tile, sums),
        }
    }
}

#[inline(always)]
unsafe fn multiply_bits<const FOURS: usize, const BYTES: usize>(
    lines: PackedRows,
    tile: InputTile,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    // The first pass reads codes from memory, the second from a cache.
    let max_rows = tile.rows.div_ceil(tile.rows.div_ceil(MAX_ROWS));
    for (pass, sums) in sums.chunks_mut(max_rows).enumerate() {
        let r = pass * max_rows;
        // SAFETY: the caller has checked the features.
        unsafe {
            match (sums.len() == tile.rows, sums.len()) {
                (true, 1) => multiply_rows::<FOURS, BYTES, 1, 2, true>(lines, tile, r, sums),
                (true, 2) => multiply_rows::<FOURS, BYTES, 2, 2, true>(lines, tile, r, sums),
                (true, 3) => multiply_rows::<FOURS, BYTES, 3, 1, true>(lines, tile, r, sums),
                (true, 4) => multiply_rows::<FOURS, BYTES, 4, 1, true>(lines, tile, r, sums),
                (true, 5) => multiply_rows::<FOURS, BYTES, 5, 1, true>(lines, tile, r, sums),
                (true, 6) => multiply_rows::<FOURS, BYTES, 6, 1, true>(lines, tile, r, sums),
                (true, 7) => multiply_rows::<FOURS, BYTES, 7, 1, true>(lines, tile, r, sums),
                (true, _) => multiply_rows::<FOURS, BYTES, 8, 1, true>(lines, tile, r, sums),
                (false, 4) => multiply_rows::<FOURS, BYTES, 4, 1, false>(lines, tile, r, sums),
                (false, 5) => multiply_rows::<FOURS, BYTES, 5, 1, false>(lines, tile, r, sums),
                (false, 6) => multiply_rows::<FOURS, BYTES, 6, 1, false>(lines, tile, r, sums),
                (false, 7) => multiply_rows::<FOURS, BYTES, 7, 1, false>(lines, tile, r, sums),
                (false, _) => multiply_rows::<FOURS, BYTES, 8, 1, false>(lines, tile, r, sums),
            }
        }
    }
}

/// Rows `r..r + M` of a tile, with `ALL` all of them, whose integers have `BYTES` bytes. Each dot
/// product has `CHAINS` accumulators, to hide the latency of additions.
#[inline(always)]
unsafe fn multiply_rows<
    const FOURS: usize,
    const BYTES: usize,
    const M: usize,
    const CHAINS: usize,
    const ALL: bool,
>(
    PackedRows { packing, groups: lines, half }: PackedRows,
    tile: InputTile,
    r: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let (words, width) = (packing.group_words(), packing.group_lines());
    // Half a line of `x` at a time: eight fours of codes. Groups are whole halves.
    let halves = words * FOURS / 8;
    let rows = if ALL { M } else { tile.rows };
    let groups = lines.len() / width;
    assert!(sums.len() == M && r + M <= rows && tile.rows == rows && tile.groups.len() == groups * rows);
    assert!(tile.planes == BYTES);
    assert!(tile.lines.len() >= BYTES * (groups * packing.group_size).div_ceil(64) * rows);
    // SAFETY: the caller has checked the features; the asserts keep accesses within the tile, and
    // each group has `words` words of codes.
    unsafe {
        let mut line = lines.as_ptr();
        let segment = K_BLOCK / packing.group_size;
        for first in (0..groups).step_by(segment) {
            let mut totals = [_mm512_setzero_ps(); M];
            for g in first..groups.min(first + segment) {
                let x = tile.lines.as_ptr().add(r);
                let dots = group_dots::<FOURS, BYTES, M, CHAINS>(line, g * halves..(g + 1) * halves, x, rows);
                let scales = floats(packing.floats, line.add(words));
                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(words + PREFETCH_LINES).cast());
                for m in 0..M {
                    let x = &*tile.groups.as_ptr().add(g * rows + r + m);
                    let mut dot = dots[m][0];
                    if CHAINS == 2 {
                        for byte in 0..BYTES {
                            dot[byte] = _mm512_add_epi32(dot[byte], dots[m][CHAINS - 1][byte]);
                        }
                    }
                    totals[m] = add_group(totals[m], dot, scales, [x.step, x.sum]);
                }
                line = line.add(width);
            }
            for m in 0..M {
                let sum = sums[m].as_mut_ptr().add(16 * half);
                let before = if first == 0 { _mm512_setzero_ps() } else { _mm512_loadu_ps(sum) };
                _mm512_storeu_ps(sum, _mm512_add_ps(before, totals[m]));
            }
        }
    }
}

/// Dot products of a group whose codes start at `line`: half lines `halves` of `M` of `rows` rows
/// of `x`, the first of which starts at `x`.
///
/// # Safety
/// See [`multiply_rows`], which keeps accesses within the tile.
#[inline(always)]
unsafe fn group_dots<const FOURS: usize, const BYTES: usize, const M: usize, const CHAINS: usize>(
    line: *const CacheLine,
    halves: Range<usize>,
    x: *const CacheLine,
    rows: usize,
) -> [[[__m512i; BYTES]; CHAINS]; M] {
    // SAFETY: the caller ensures it.
    unsafe {
        let mut dots = [[[_mm512_setzero_si512(); BYTES]; CHAINS]; M];
        for (h, at) in halves.enumerate() {
            let x = x.add(BYTES * (at / 2) * rows).cast::<i32>().add(at % 2 * 8);
            for i in 0..8 / FOURS {
                let word = load_and_prefetch(&*line.add(h * (8 / FOURS) + i));
                for s in 0..FOURS {
                    let four = four::<_, FOURS>(word, s);
                    let q = i * FOURS + s;
                    for m in 0..M {
                        let chain = &mut dots[m][q % CHAINS];
                        for byte in 0..BYTES {
                            let x = _mm512_set1_epi32(*x.add(16 * (byte * rows + m) + q));
                            chain[byte] = _mm512_dpbusd_epi32(chain[byte], four, x);
                        }
                    }
                }
            }
        }
        dots
    }
}

/// Loads a line and prefetches a later one, which need not exist.
#[inline(always)]
unsafe fn load_and_prefetch(line: &CacheLine) -> __m512i {
    let place = line.0.as_ptr();
    // SAFETY: a line is 64 aligned bytes; a prefetch accesses no memory.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(16 * PREFETCH_LINES).cast());
        _mm512_load_si512(place.cast())
    }
}

/// A group's scales and biases.
#[inline(always)]
unsafe fn floats(kind: FloatType, place: *const CacheLine) -> [__m512; 2] {
    // SAFETY: the caller has checked the features; `place` has the lines that the type needs.
    unsafe {
        let halves = place.cast::<__m256i>();
        match kind {
            FloatType::F32 => [_mm512_load_ps(place.cast()), _mm512_load_ps(place.add(1).cast())],
            FloatType::F16 => [
                _mm512_cvtph_ps(_mm256_load_si256(halves)),
                _mm512_cvtph_ps(_mm256_load_si256(halves.add(1))),
            ],
            FloatType::Bf16 => [bf16(_mm256_load_si256(halves)), bf16(_mm256_load_si256(halves.add(1)))],
        }
    }
}

#[inline(always)]
unsafe fn bf16(halves: __m256i) -> __m512 {
    // SAFETY: the caller has checked the features.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))) }
}
