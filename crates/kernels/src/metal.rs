//! Sources of kernels in Metal's language, with the bits of this crate's kernels. MLX makes a
//! function of each body; the names of inputs, outputs and constants are in `nn`, which launches
//! them.

/// What stands before each kernel.
pub const MATH: &str = include_str!("../metal/math.h");

pub const DELTA: &str = include_str!("../metal/delta.metal");
pub const DELTA_INPUTS: &str = include_str!("../metal/delta_inputs.metal");
pub const GATED_NORM: &str = include_str!("../metal/gated_norm.metal");
pub const GATES: &str = include_str!("../metal/gates.metal");
pub const HEADS: &str = include_str!("../metal/heads.metal");
pub const INTEGERS: &str = include_str!("../metal/integers.metal");
pub const PRODUCT: &str = include_str!("../metal/product.metal");
pub const PRODUCT_MANY: &str = include_str!("../metal/product_many.metal");
