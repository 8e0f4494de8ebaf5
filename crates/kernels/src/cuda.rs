//! CUDA kernels: their sources, the layout of weights that they read, and their parameters in C's
//! layout. Other crates compile and launch them.

mod parameters;
mod tiles;

pub use parameters::*;
pub use tiles::{TILE_FEATURES, TiledLayout};

/// Sources of kernels by name.
pub const KERNELS: &[(&str, &str)] = &[
    ("attention.cu", include_str!("../cuda/attention.cu")),
    ("attention_many.cu", include_str!("../cuda/attention_many.cu")),
    ("delta.cu", include_str!("../cuda/delta.cu")),
    ("delta_inputs.cu", include_str!("../cuda/delta_inputs.cu")),
    ("delta_token.cu", include_str!("../cuda/delta_token.cu")),
    ("heads.cu", include_str!("../cuda/heads.cu")),
    ("medium.cu", include_str!("../cuda/medium.cu")),
    ("medium_warpgroup.cu", include_str!("../cuda/medium_warpgroup.cu")),
    ("quantize.cu", include_str!("../cuda/quantize.cu")),
    ("rows.cu", include_str!("../cuda/rows.cu")),
    ("sample.cu", include_str!("../cuda/sample.cu")),
    ("skinny.cu", include_str!("../cuda/skinny.cu")),
    ("wide.cu", include_str!("../cuda/wide.cu")),
    ("wide_warpgroup.cu", include_str!("../cuda/wide_warpgroup.cu")),
];

/// Headers that the sources include.
pub const HEADERS: &[(&str, &str)] = &[
    ("attention.cuh", include_str!("../cuda/attention.cuh")),
    ("common.cuh", include_str!("../cuda/common.cuh")),
    ("delta.cuh", include_str!("../cuda/delta.cuh")),
    ("math.cuh", include_str!("../cuda/math.cuh")),
    ("medium_warpgroup.cuh", include_str!("../cuda/medium_warpgroup.cuh")),
    ("quantize.cuh", include_str!("../cuda/quantize.cuh")),
    ("warpgroup.cuh", include_str!("../cuda/warpgroup.cuh")),
    ("wide.cuh", include_str!("../cuda/wide.cuh")),
    ("wide_warpgroup.cuh", include_str!("../cuda/wide_warpgroup.cuh")),
];

/// All kernels.
pub const NAMES: &[&str] = &[
    "attend_few_64_4",
    "attend_few_64_4_deep",
    "attend_few_64_16",
    "attend_many_64",
    "attend_few_128_4",
    "attend_few_128_4_deep",
    "attend_few_128_16",
    "attend_many_128",
    "attend_few_256_4",
    "attend_few_256_4_deep",
    "attend_few_256_16",
    "attend_many_256",
    "delta_64",
    "delta_128",
    "delta_inputs_64",
    "delta_inputs_128",
    "conv_state",
    "delta_token_64",
    "delta_token_128",
    "heads",
    "quantize",
    "quantize_norm",
    "quantize_gated",
    "quantize_gated_norm",
    "rms_norm",
    "embed_4",
    "embed_8",
    "sample_blocks",
    "sample_finish",
    "skinny_4_16_2_1",
    "skinny_4_16_1_1",
    "skinny_4_12_2_1",
    "skinny_4_8_2_1",
    "skinny_4_8_1_1",
    "skinny_4_16_1_2",
    "skinny_4_8_2_2",
    "skinny_4_8_1_2",
    "skinny_8_8_2_1",
    "skinny_8_8_1_1",
    "skinny_8_8_2_2",
    "skinny_8_8_1_2",
    "skinny_row_4_16_2",
    "skinny_row_4_16_1",
    "skinny_row_4_8_2",
    "skinny_row_4_8_1",
    "skinny_row_8_8_2",
    "skinny_row_8_8_1",
    "medium_4_32",
    "medium_4_64",
    "medium_8_32",
    "medium_8_64",
    "medium_warpgroup_4_64x32",
    "medium_warpgroup_4_64x64",
    "medium_warpgroup_8_64x64",
    "wide_4",
    "wide_8",
    "wide_warpgroup_4",
    "wide_warpgroup_8",
];
