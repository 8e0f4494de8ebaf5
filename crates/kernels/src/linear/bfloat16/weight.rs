//! Weights of each format as blocks of bfloat16 numbers.

use half::bf16;

use crate::{
    cache_line::CacheLine,
    lanes::LANES,
    linear::{
        Microscaled,
        codes::{e4m3, e8m0, unpack_chunk},
        tiling::INPUT_BLOCK,
    },
    scalar::Scalar,
};

/// 64 inputs of a row as 32 pairs, the even number in the lower half.
pub(crate) type Bf16Block = [CacheLine; 2];
/// The start and the length in bytes of a part of a stored row.
pub(crate) type StoredPart = (*const u8, usize);

/// A weight that is read block by block.
pub(crate) trait Bf16Weight: Copy + Sync {
    /// Inputs `64 * block ..` of row `row`, zeros past its end.
    fn block(self, row: usize, block: usize) -> Bf16Block;

    /// The parts of stored row `row`, for prefetching.
    fn stored(self, row: usize) -> [StoredPart; 2];

    /// The start of row `row` if rows are whole blocks, stored as AMX reads them, `2 * k` bytes
    /// apart.
    #[inline(always)]
    fn in_place(self, _row: usize) -> Option<*const u8> {
        None
    }
}

/// `length` values from `at`; they need not exist.
#[inline(always)]
fn stored_part<T>(values: &[T], at: usize, length: usize) -> StoredPart {
    (values.as_ptr().wrapping_add(at).cast(), length * size_of::<T>())
}

/// A matrix `[.., k]` of bfloat16 numbers.
#[derive(Clone, Copy)]
pub(crate) struct DenseBf16<'a> {
    pub values: &'a [bf16],
    pub k: usize,
}

impl Bf16Weight for DenseBf16<'_> {
    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Bf16Block {
        let row = &self.values[row * self.k..][..self.k][block * INPUT_BLOCK..];
        let mut values = [bf16::ZERO; INPUT_BLOCK];
        match row.first_chunk::<INPUT_BLOCK>() {
            Some(whole) => values = *whole,
            None => values[..row.len()].copy_from_slice(row),
        }
        let mut block = [CacheLine::ZERO; 2];
        for (line, pairs) in block.iter_mut().zip(values.as_chunks::<{ INPUT_BLOCK / 2 }>().0) {
            for (word, [low, high]) in line.0.iter_mut().zip(pairs.as_chunks::<2>().0) {
                *word = u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
            }
        }
        block
    }

    #[inline(always)]
    fn stored(self, row: usize) -> [StoredPart; 2] {
        [stored_part(self.values, row * self.k, self.k), (std::ptr::null(), 0)]
    }

    #[inline(always)]
    fn in_place(self, row: usize) -> Option<*const u8> {
        self.k.is_multiple_of(INPUT_BLOCK).then(|| self.values[row * self.k..].as_ptr().cast())
    }
}

/// A matrix `[.., k]` of 8-bit floats, whose products with the scale are exact in bfloat16.
#[derive(Clone, Copy)]
pub(crate) struct Mxfp8<'a> {
    pub weight: Microscaled<'a>,
    pub k: usize,
}

/// Values of MXFP8 that share a scale.
pub(crate) const MXFP8_GROUP: usize = 32;

impl Bf16Weight for Mxfp8<'_> {
    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Bf16Block {
        let codes = &self.weight.codes[row * self.k / 4..][..self.k / 4];
        let scales = &self.weight.scales[row * self.k / MXFP8_GROUP..][..self.k / MXFP8_GROUP];
        let mut values = [0; INPUT_BLOCK];
        for chunk in 0..INPUT_BLOCK / LANES {
            let at = block * (INPUT_BLOCK / LANES) + chunk;
            if at * LANES >= self.k {
                break;
            }
            let scale = e8m0(scales[at * LANES / MXFP8_GROUP]);
            let codes = unpack_chunk::<8>(codes, at);
            for i in 0..LANES {
                values[chunk * LANES + i] = round_bits(e4m3(codes[i]) * scale);
            }
        }
        let pairs = pairs(&values);
        let mut block = [CacheLine::ZERO; 2];
        block[0].0.copy_from_slice(&pairs[..16]);
        block[1].0.copy_from_slice(&pairs[16..]);
        block
    }

    #[inline(always)]
    fn stored(self, row: usize) -> [StoredPart; 2] {
        let (words, groups) = (self.k / 4, self.k / MXFP8_GROUP);
        let Microscaled { codes, scales, .. } = self.weight;
        [stored_part(codes, row * words, words), stored_part(scales, row * groups, groups)]
    }
}

/// The bits of the nearest bfloat16, ties to even.
#[inline(always)]
pub(crate) fn round_bits(value: f32) -> u32 {
    <bf16 as Scalar>::from_f32(value).to_bits() as u32
}

/// The pairs of a block of 64 numbers.
#[inline(always)]
pub(super) fn pairs(values: &[u32; INPUT_BLOCK]) -> [u32; 32] {
    let mut pairs = [0; 32];
    for i in 0..32 {
        pairs[i] = values[2 * i] | values[2 * i + 1] << 16;
    }
    pairs
}
