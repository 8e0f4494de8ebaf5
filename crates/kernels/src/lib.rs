//! CPU kernels as plain functions over slices: SIMD and threads, no MLX, no models.
//!
//! Every kernel is row-invariant: the order of arithmetic of an output row depends on that row
//! alone, never on the number of rows or threads. Tests check each kernel for that, bit for bit.
//!
//! ```
//! let (x, weight, mut out) = ([3.0_f32, 4.0], [1.0_f32, 1.0], [0.0_f32; 2]);
//! lanner_kernels::rms_norm(&x, &weight, &mut out, 0.0);
//! let mean_square = (9.0_f32 + 16.0) / 2.0;
//! assert!((out[0] - 3.0 / mean_square.sqrt()).abs() < 1e-6);
//! ```

mod attention;
mod bandwidth;
mod cache_line;
mod combine;
mod conv;
pub mod cuda;
mod delta;
mod dequantize;
mod disjoint;
mod gated;
mod gelu;
mod gumbel;
mod lanes;
mod layer_norm;
mod linear;
mod memory;
pub mod metal;
mod norm;
mod panel;
mod parallel;
mod quantize;
mod rope;
mod router;
mod sample;
mod scalar;
mod simd;
mod softcap;
mod top_k;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use attention::{
    AttentionMask, AttentionShape, KEY_BLOCK, Softmax, append_kv, attention, latent_attention,
};
pub use bandwidth::read_bandwidth;
pub use combine::{CombineWith, combine_experts};
pub use conv::{ConvActivation, causal_conv, conv_taps};
pub use delta::{DeltaShape, DeltaTokens, gated_delta, gated_delta_speculative};
pub use dequantize::dequantize_rows;
pub use gated::{Activation, delta_gates, gated, sigmoid_gated};
pub use gelu::{ERFC_FIT, Gelu, gelu};
pub use gumbel::{fill_gumbel, gumbel};
pub use layer_norm::layer_norm;
pub use linear::{
    Affine, FloatFormat, FloatType, Floats, Matmul, Microscaled, Packed, PackedLayout, Precision, Weight,
    float32_values, gated_linear, grouped_linear, linear, linears,
};
pub use memory::with_scratch;
pub use norm::{add, gated_rms_norm, rms_norm, rms_norm_columns};
pub use parallel::{for_each_chunk, set_threads, threads};
pub use quantize::quantize_microscaled;
pub use rope::{RopePairs, RopePositions, rope};
pub use router::{RouterRule, RouterScores, route};
pub use sample::{PastToken, SampleError, Sampling, log_sum_exp, probability, sample, score_floor};
pub use scalar::Scalar;
pub use simd::{SimdLevel, simd_level};
pub use softcap::softcap;
pub use top_k::top_k;
