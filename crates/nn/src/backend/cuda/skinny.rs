//! The compiled kernels for products of few rows.

use kernels::cuda::{MAX_SHARED, skinny_shared};

/// A compiled kernel for few rows.
pub(super) struct Variant {
    pub name: &'static str,
    pub bits: usize,
    pub warps: usize,
    depth: usize,
    sets: usize,
}

/// A product of few rows: of `tiles` tiles of features in `blocks` blocks of threads.
pub(super) struct FewRows {
    pub bits: usize,
    pub rows: usize,
    pub segments: usize,
    pub tiles: usize,
    pub blocks: usize,
}

/// How to launch one: with up to `pass` segments in a pass.
pub(super) struct Launch {
    pub variant: &'static Variant,
    pub pass: usize,
    pub shared: usize,
}

impl FewRows {
    /// The fastest: in as few passes as fit into shared memory.
    pub(super) fn launch(&self) -> Launch {
        // Small matrices are done before a second segment would arrive.
        let small = self.tiles * self.segments <= 4096 / 16 * 4096 / 512;
        let of_size = |variant: &&Variant| variant.bits == self.bits && variant.sets == self.rows.div_ceil(4);
        let in_passes = |passes: usize| {
            let pass = self.segments.div_ceil(passes);
            let launch = |variant| Launch { variant, pass, shared: self.shared(variant, pass) };
            let fitting = || VARIANTS.iter().filter(of_size).map(launch).filter(|it| it.shared <= MAX_SHARED);
            fitting().find(|it| !small || it.variant.depth == 1).or_else(|| fitting().next())
        };
        let found = (1..=self.segments).find_map(in_passes);
        found.unwrap_or_else(|| panic!("no product of {} rows has room for {} tiles", self.rows, self.tiles))
    }

    fn shared(&self, variant: &Variant, pass: usize) -> usize {
        let totals =
            if pass < self.segments { self.tiles.div_ceil(self.blocks) * variant.sets * 256 } else { 0 };
        variant.shared(self.bits, pass, self.rows) + totals
    }
}

impl Variant {
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
