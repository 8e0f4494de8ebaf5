//! Quantised weights in the order in which CUDA kernels read them: `cuda/skinny.cu` describes it.

use std::ops::RangeInclusive;

use half::bf16;

use crate::{Affine, FloatFormat, Floats, Microscaled, Weight, linear::half_e8m0, parallel::for_each_chunk};

/// Features of a tile.
pub const TILE_FEATURES: usize = 16;
/// Inputs of a segment, and of a group.
const SEGMENT: usize = 512;
const GROUP: usize = 64;
/// Tiles are padded to a multiple of this many: what a block of many rows takes at once.
const TILES_TOGETHER: usize = 8;

/// What the codes of a tile are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileFormat {
    /// Affine, with a scale and a bias for each group. Narrower codes are stored in this width.
    Affine4,
    Affine8,
    /// Floats of 4 bits with a scale, a power of two, for each half group.
    Mxfp4,
}

impl TileFormat {
    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            TileFormat::Affine4 | TileFormat::Mxfp4 => 4,
            TileFormat::Affine8 => 8,
        }
    }
}

/// The size of a matrix `[features, inputs]` in tiles, in groups of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledLayout {
    pub format: TileFormat,
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
    pub fn for_weight(weight: &Weight, features: usize, inputs: usize) -> Option<TiledLayout> {
        if features == 0 || inputs == 0 {
            return None;
        }
        let &Affine { scales, biases, group_size, bits, .. } = match weight {
            Weight::Affine(affine) => affine,
            Weight::Microscaled(Microscaled { format: FloatFormat::Mxfp4, .. }) => {
                let layout = TiledLayout { format: TileFormat::Mxfp4, features, inputs, in_halves: false };
                return inputs.is_multiple_of(GROUP).then_some(layout);
            }
            _ => return None,
        };
        let (Floats::Bf16(scales), Floats::Bf16(biases)) = (scales, biases) else { return None };
        let format = if bits <= 4 { TileFormat::Affine4 } else { TileFormat::Affine8 };
        let fits = |number: &bf16| {
            let bits = number.to_bits() & 0x7fff;
            bits == 0 || HALF_SCALES.contains(&(bits >> 7))
        };
        let in_halves = format.bits() == 4 && [scales, biases].iter().all(|numbers| numbers.iter().all(fits));
        (group_size == GROUP).then_some(TiledLayout { format, features, inputs, in_halves })
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
        TILE_FEATURES * SEGMENT * self.format.bits() / 8
    }

    pub fn bytes(self) -> usize {
        self.padded_tiles() * self.segments() * self.block_bytes()
    }

    /// Rearranges `weight` into `memory` of [`bytes`](TiledLayout::bytes).
    ///
    /// # Panics
    /// If the memory has another size, or the weight another shape or format.
    pub fn pack(self, weight: Weight, memory: &mut [u8]) {
        weight.check(self.features, self.inputs);
        assert_eq!(memory.len(), self.bytes(), "memory for {self:?}");
        memory.fill(0);
        let tile_bytes = self.segments() * self.block_bytes();
        for_each_chunk(memory, tile_bytes, self.features * self.inputs, |tile, memory| {
            let first = tile * TILE_FEATURES;
            for row in first..self.features.min(first + TILE_FEATURES) {
                match weight {
                    Weight::Affine(Affine { codes, bits, .. }) => self.pack_row(codes, bits, row, memory),
                    Weight::Microscaled(Microscaled { codes, .. }) => self.pack_row(codes, 4, row, memory),
                    _ => panic!("no integer codes"),
                }
                let groups = self.inputs / GROUP;
                for group in 0..groups {
                    let block = group / (SEGMENT / GROUP) * self.block_bytes() + self.code_bytes();
                    let at = block + (group % (SEGMENT / GROUP) * TILE_FEATURES + row % TILE_FEATURES) * 4;
                    for (half, number) in scale_pair(&weight, row * groups + group).into_iter().enumerate() {
                        memory[at + 2 * half..][..2].copy_from_slice(&number.to_bits().to_le_bytes());
                    }
                }
            }
        });
    }

    /// The codes of a row into its tile.
    fn pack_row(self, codes: &[u32], bits: usize, row: usize, tile: &mut [u8]) {
        let words = self.inputs * bits / 32;
        let codes = &codes[row * words..][..words];
        let (lane, upper) = (row % 8 * 4, row % TILE_FEATURES / 8);
        for input in 0..self.inputs {
            let code = code_at(codes, input, bits);
            let block = input / SEGMENT * self.block_bytes();
            let (group, i) = (input % SEGMENT / GROUP, input % GROUP);
            let lane = lane + i % 16 / 4;
            // A word of codes of 4 bits has four neighbours, and those 16 inputs after them.
            let word = block + group * 512 + lane * 16 + (upper * 2 + i / 32) * 4;
            match self.format {
                TileFormat::Affine4 => tile[word + i % 4] |= code << (i % 32 / 16 * 4),
                TileFormat::Mxfp4 => {
                    // The other zero is one that kernels do not know.
                    let code = if code == 8 { 0 } else { code };
                    tile[word + i % 32 / 16 * 2 + i % 4 / 2] |= code << (i % 2 * 4);
                }
                TileFormat::Affine8 => {
                    let fragment = block + group * 1024 + i / 32 * 512 + lane * 16;
                    tile[fragment + (i % 32 / 16 * 2 + upper) * 4 + i % 4] = code;
                }
            }
        }
    }
}

/// The scale and bias of a group, or the scales of its halves for twice the floats.
fn scale_pair(weight: &Weight, group: usize) -> [bf16; 2] {
    match *weight {
        Weight::Affine(Affine { scales: Floats::Bf16(scales), biases: Floats::Bf16(biases), .. }) => {
            [scales[group], biases[group]]
        }
        // Powers of two are the same in bfloat16.
        Weight::Microscaled(Microscaled { scales, .. }) => {
            [0, 1].map(|half| bf16::from_f32(half_e8m0(scales[2 * group + half])))
        }
        _ => panic!("scales are not bfloat16"),
    }
}

/// Code `index` of a row, which may cross words.
fn code_at(codes: &[u32], index: usize, bits: usize) -> u8 {
    let (word, shift) = (index * bits / 32, index * bits % 32);
    let next = if shift + bits > 32 { u64::from(codes[word + 1]) } else { 0 };
    ((u64::from(codes[word]) | next << 32) >> shift & ((1 << bits) - 1)) as u8
}
