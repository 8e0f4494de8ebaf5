//! Affine weights in the order in which CUDA kernels read them: `cuda/skinny.cu` describes it.

use std::ops::RangeInclusive;

use half::bf16;

use crate::{Affine, Floats, parallel::for_each_chunk};

/// Features of a tile.
pub const TILE_FEATURES: usize = 16;
/// Inputs of a segment, and of a group.
const SEGMENT: usize = 512;
const GROUP: usize = 64;
/// Tiles are padded to a multiple of this many: what a block of many rows takes at once.
const TILES_TOGETHER: usize = 8;

/// The size of a matrix `[features, inputs]` in tiles, of codes of 4 or 8 bits in groups of 64.
/// Narrower codes are stored in one of these widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledLayout {
    pub bits: usize,
    pub features: usize,
    pub inputs: usize,
    /// Whether kernels may multiply in half precision: codes of 4 bits whose scales and biases are
    /// 0 or of [`HALF_SCALES`].
    pub in_halves: bool,
}

/// Exponents of scales and biases, as bfloat16 stores them, from 2^-60 to 2^60: sums of products in
/// half precision then are the same numbers whether the step of their inputs multiplies first or
/// last.
const HALF_SCALES: RangeInclusive<u16> = 127 - 60..=127 + 60;

impl TiledLayout {
    /// The layout for `features` rows of `weight`; `None` unless kernels read its format.
    pub fn for_weight(weight: &Affine, features: usize, inputs: usize) -> Option<TiledLayout> {
        let Affine { scales, biases, group_size, bits, .. } = *weight;
        let (Floats::Bf16(scales), Floats::Bf16(biases)) = (scales, biases) else { return None };
        let reads = group_size == GROUP;
        let bits = if bits <= 4 { 4 } else { 8 };
        let fits = |number: &bf16| {
            let bits = number.to_bits() & 0x7fff;
            bits == 0 || HALF_SCALES.contains(&(bits >> 7))
        };
        let in_halves = bits == 4 && [scales, biases].iter().all(|numbers| numbers.iter().all(fits));
        (reads && features > 0 && inputs > 0).then_some(TiledLayout { bits, features, inputs, in_halves })
    }

    /// Tiles with features of the matrix.
    pub fn tiles(self) -> usize {
        self.features.div_ceil(TILE_FEATURES)
    }

    /// Tiles in memory, including padding.
    pub fn padded_tiles(self) -> usize {
        self.tiles().next_multiple_of(TILES_TOGETHER)
    }

    pub fn segments(self) -> usize {
        self.inputs.div_ceil(SEGMENT)
    }

    /// Bytes of a tile's segment.
    fn block_bytes(self) -> usize {
        self.code_bytes() + SEGMENT / GROUP * TILE_FEATURES * 4
    }

    fn code_bytes(self) -> usize {
        TILE_FEATURES * SEGMENT * self.bits / 8
    }

    pub fn bytes(self) -> usize {
        self.padded_tiles() * self.segments() * self.block_bytes()
    }

    /// Rearranges `weight` into `memory` of [`bytes`](TiledLayout::bytes).
    ///
    /// # Panics
    /// If the memory has another size, or the weight another shape or format.
    pub fn pack(self, weight: Affine, memory: &mut [u8]) {
        let (Floats::Bf16(scales), Floats::Bf16(biases)) = (weight.scales, weight.biases) else {
            panic!("scales are not bfloat16");
        };
        weight.check(self.features, self.inputs);
        assert_eq!(memory.len(), self.bytes(), "memory for {self:?}");
        memory.fill(0);
        let tile_bytes = self.segments() * self.block_bytes();
        for_each_chunk(memory, tile_bytes, self.features * self.inputs, |tile, memory| {
            let first = tile * TILE_FEATURES;
            for row in first..self.features.min(first + TILE_FEATURES) {
                self.pack_row(&weight, row, memory);
                let groups = self.inputs / GROUP;
                for group in 0..groups {
                    let block = group / (SEGMENT / GROUP) * self.block_bytes() + self.code_bytes();
                    let at = block + (group % (SEGMENT / GROUP) * TILE_FEATURES + row % TILE_FEATURES) * 4;
                    let own = row * groups + group;
                    memory[at..][..2].copy_from_slice(&scales[own].to_bits().to_le_bytes());
                    memory[at + 2..][..2].copy_from_slice(&biases[own].to_bits().to_le_bytes());
                }
            }
        });
    }

    /// The codes of a row into its tile.
    fn pack_row(self, weight: &Affine, row: usize, tile: &mut [u8]) {
        let words = self.inputs * weight.bits / 32;
        let codes = &weight.codes[row * words..][..words];
        let (lane, upper) = (row % 8 * 4, row % TILE_FEATURES / 8);
        for input in 0..self.inputs {
            let code = code_at(codes, input, weight.bits);
            let block = input / SEGMENT * self.block_bytes();
            let (group, i) = (input % SEGMENT / GROUP, input % GROUP);
            let lane = lane + i % 16 / 4;
            if self.bits == 4 {
                let at = block + group * 512 + lane * 16 + (upper * 2 + i / 32) * 4 + i % 4;
                tile[at] |= code << (i % 32 / 16 * 4);
            } else {
                let at =
                    block + group * 1024 + i / 32 * 512 + lane * 16 + (i % 32 / 16 * 2 + upper) * 4 + i % 4;
                tile[at] = code;
            }
        }
    }
}

/// Code `index` of a row, which may cross words.
fn code_at(codes: &[u32], index: usize, bits: usize) -> u8 {
    let (word, shift) = (index * bits / 32, index * bits % 32);
    let next = if shift + bits > 32 { u64::from(codes[word + 1]) } else { 0 };
    ((u64::from(codes[word]) | next << 32) >> shift & ((1 << bits) - 1)) as u8
}
