//! Packed weights with AVX-512: unpacked into a panel, or, for few rows of `x`, multiplied as they come out of memory.

use std::{arch::x86_64::*, ops::Range};

use super::{PANEL, Panel, avx512::add_group, blocks::Lines, codes_avx512::four, inputs::Tile};
use crate::linear::{
    lines::Line,
    packed::{FloatType, Packed, PackedLayout},
};

/// Rows of `x` at a time: with more their sums do not fit into registers.
const MOST: usize = 8;
/// How far ahead of where it reads memory is asked for what comes, in lines: more than a processor does by itself.
const AHEAD: usize = 72;

/// See [`super::blocks::unpack`].
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn unpack(
    weight: Packed,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut Panel,
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
    lines: &[Line],
    half: usize,
    panel: &mut Panel,
) {
    let words = packing.group_words();
    for (g, lines) in lines.chunks_exact(packing.group_lines()).enumerate() {
        let to = &mut panel.codes[g * words * FOURS..][..words * FOURS];
        // SAFETY: the features are the caller's; lines are 64 aligned bytes.
        unsafe {
            for i in 0..words {
                let word = ask(&lines[i]);
                for s in 0..FOURS {
                    let four = four::<FOURS>(word, s);
                    _mm512_store_si512(to[i * FOURS + s][half].0.as_mut_ptr().cast(), four);
                }
            }
            let [scale, bias] = floats(packing.floats, lines[words..].as_ptr());
            _mm512_store_ps(panel.scales[g][half].as_mut_ptr(), scale);
            _mm512_store_ps(panel.biases[g][half].as_mut_ptr(), bias);
        }
    }
}

/// See [`super::blocks::Multiply`].
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn multiply(lines: Lines, tile: Tile, sums: &mut [[f32; PANEL]]) {
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
    lines: Lines,
    tile: Tile,
    sums: &mut [[f32; PANEL]],
) {
    // Codes come out of memory for the first pass, and out of a cache for the second.
    let most = tile.rows.div_ceil(tile.rows.div_ceil(MOST));
    for (pass, sums) in sums.chunks_mut(most).enumerate() {
        let r = pass * most;
        // SAFETY: the features are the caller's.
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

/// Of rows `r..r + M` of `x`, which are `ALL` of the tile's or not and whose integers have so many `BYTES`; each row's sum with
/// one of these is `CHAINS` sums, lest the processor wait for the one before.
#[inline(always)]
unsafe fn multiply_rows<
    const FOURS: usize,
    const BYTES: usize,
    const M: usize,
    const CHAINS: usize,
    const ALL: bool,
>(
    Lines { packing, groups: lines, half }: Lines,
    tile: Tile,
    r: usize,
    sums: &mut [[f32; PANEL]],
) {
    let (words, width) = (packing.group_words(), packing.group_lines());
    let rows = if ALL { M } else { tile.rows };
    let groups = lines.len() / width;
    assert!(sums.len() == M && r + M <= rows && tile.rows == rows && tile.groups.len() == groups * rows);
    assert!(tile.planes == BYTES);
    assert!(tile.lines.len() >= BYTES * (groups * packing.group_size).div_ceil(64) * rows);
    // SAFETY: the features are the caller's; the asserts keep places within the tile, and `words * FOURS` fours of
    // each group are what its inputs are.
    unsafe {
        let mut totals = [_mm512_setzero_ps(); M];
        let mut line = lines.as_ptr();
        let mut q = 0;
        for g in 0..groups {
            let mut dots = [[[_mm512_setzero_si512(); BYTES]; CHAINS]; M];
            for i in (0..words).step_by(2) {
                for j in 0..2 {
                    let word = ask(&*line.add(i + j));
                    for s in 0..FOURS {
                        let four = four::<FOURS>(word, s);
                        let q = q + (i + j) * FOURS + s;
                        let x = tile.lines.as_ptr().add(BYTES * (q / 16) * rows + r);
                        let x = x.cast::<i32>().add(q % 16);
                        for m in 0..M {
                            let chain = &mut dots[m][(j * FOURS + s) % CHAINS];
                            for byte in 0..BYTES {
                                let x = _mm512_set1_epi32(*x.add(16 * (byte * rows + m)));
                                chain[byte] = _mm512_dpbusd_epi32(chain[byte], four, x);
                            }
                        }
                    }
                }
            }
            let scales = floats(packing.floats, line.add(words));
            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(words + AHEAD).cast());
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
            q += words * FOURS;
        }
        for m in 0..M {
            _mm512_storeu_ps(sums[m].as_mut_ptr().add(16 * half), totals[m]);
        }
    }
}

/// A line, and memory asked for one that is needed later, which need not exist.
#[inline(always)]
unsafe fn ask(line: &Line) -> __m512i {
    let place = line.0.as_ptr();
    // SAFETY: a line is 64 aligned bytes; asking for memory does not touch it.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(16 * AHEAD).cast());
        _mm512_load_si512(place.cast())
    }
}

/// A group's scales and biases.
#[inline(always)]
unsafe fn floats(kind: FloatType, place: *const Line) -> [__m512; 2] {
    // SAFETY: the features are the caller's; as many lines as the type needs.
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
    // SAFETY: the features are the caller's.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))) }
}
