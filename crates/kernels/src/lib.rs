//! CPU kernels as plain functions over slices: SIMD and threads, no MLX, no models.
//!
//! Every kernel is row-invariant: the arithmetic order of an output row depends on that row alone, never on how
//! many rows are computed together or how many threads run. Tests hold each kernel to that, bit for bit.

mod attention;
mod bandwidth;
mod conv;
mod delta;
#[cfg(all(feature = "emulated-tiles", target_arch = "x86_64", target_os = "linux"))]
#[allow(clippy::needless_range_loop, reason = "closures do not get the instruction set of what calls them")]
mod emulated_tiles;
mod gated;
mod gumbel;
mod lanes;
mod linear;
mod norm;
mod pack;
mod panel;
mod parallel;
mod rope;
mod rows;
mod sample;
mod scalar;
mod shared;
mod simd;
mod top_k;
mod transpose;

pub use attention::{AttentionShape, KEY_BLOCK, Softmax, append_kv, attention, latent_attention};
pub use bandwidth::read_bandwidth;
pub use conv::{ConvActivation, causal_conv, conv_taps};
pub use delta::{DeltaShape, DeltaTokens, gated_delta, gated_delta_speculative};
pub use gated::{Activation, delta_gates, gated, sigmoid_gated};
pub use gumbel::{fill_gumbel, gumbel};
pub use linear::{
    Affine, FloatFormat, FloatType, Floats, Matmul, Microscaled, Packed, PackedLayout, Precision, Weight,
    gated_linear, grouped_linear, linear, linears,
};
pub use norm::{add, gated_rms_norm, rms_norm, rms_norm_columns};
pub use pack::quantize_microscaled;
pub use parallel::{for_each_chunk, set_threads, threads};
pub use rope::{RopePairs, rope};
pub use rows::dequantize_rows;
pub use sample::{PastToken, SampleError, Sampling, probability, sample};
pub use scalar::Scalar;
pub use shared::with_scratch;
pub use simd::{SimdLevel, simd_level};
pub use top_k::top_k;
