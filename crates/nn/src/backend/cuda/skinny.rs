//! The compiled kernels for products of few rows.

use kernels::cuda::skinny_shared;

/// A compiled kernel for few rows.
pub(super) struct Variant {
    pub name: &'static str,
    pub bits: usize,
    pub warps: usize,
    depth: usize,
    sets: usize,
}

impl Variant {
    /// The best one for this many rows, of those that fit into `most` bytes of shared memory.
    pub(super) fn find(
        bits: usize,
        tiles: usize,
        segments: usize,
        rows: usize,
        most: usize,
    ) -> Option<&'static Variant> {
        let (small, sets) = (tiles * segments <= 4096 / 16 * 4096 / 512, rows.div_ceil(4));
        let fits = |variant: &&Variant| variant.shared(bits, segments, rows) <= most;
        let of_size = |variant: &&Variant| variant.bits == bits && variant.sets == sets;
        let fitting = || VARIANTS.iter().filter(of_size).filter(fits);
        // Small matrices are done before a second segment would arrive.
        fitting().find(|variant| !small || variant.depth == 1).or_else(|| fitting().next())
    }

    pub(super) fn shared(&self, bits: usize, segments: usize, rows: usize) -> usize {
        skinny_shared(bits, self.warps, self.depth, self.sets, segments, rows)
    }
}

const fn variant(name: &'static str, [bits, warps, depth, sets]: [usize; 4]) -> Variant {
    Variant { name, bits, warps, depth, sets }
}

/// The fastest first.
const VARIANTS: &[Variant] = &[
    variant("skinny_4_16_2_1", [4, 16, 2, 1]),
    variant("skinny_4_12_2_1", [4, 12, 2, 1]),
    variant("skinny_4_16_1_1", [4, 16, 1, 1]),
    variant("skinny_4_8_2_1", [4, 8, 2, 1]),
    variant("skinny_4_8_1_1", [4, 8, 1, 1]),
    variant("skinny_4_16_1_2", [4, 16, 1, 2]),
    variant("skinny_4_8_2_2", [4, 8, 2, 2]),
    variant("skinny_4_8_1_2", [4, 8, 1, 2]),
    variant("skinny_8_8_2_1", [8, 8, 2, 1]),
    variant("skinny_8_8_1_1", [8, 8, 1, 1]),
    variant("skinny_8_8_2_2", [8, 8, 2, 2]),
    variant("skinny_8_8_1_2", [8, 8, 1, 2]),
];

/// Kernels of one row that make its integers, the fastest first: many warps make them together.
pub(super) const ROW_VARIANTS: &[Variant] = &[
    variant("skinny_row_4_16_2", [4, 16, 2, 1]),
    variant("skinny_row_4_16_1", [4, 16, 1, 1]),
    variant("skinny_row_4_8_2", [4, 8, 2, 1]),
    variant("skinny_row_4_8_1", [4, 8, 1, 1]),
    variant("skinny_row_8_8_2", [8, 8, 2, 1]),
    variant("skinny_row_8_8_1", [8, 8, 1, 1]),
];
