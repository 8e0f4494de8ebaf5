//! Block sizes that the integer and bfloat16 products share.

/// Weight rows computed together.
pub(crate) const PANEL_ROWS: usize = 32;
/// Inputs that are stored together: a cache line per plane.
pub(crate) const INPUT_BLOCK: usize = 64;
/// Rows of `x` that are stored interleaved.
pub(crate) const TILE_ROWS: usize = 16;
