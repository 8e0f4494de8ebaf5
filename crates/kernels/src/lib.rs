//! CPU kernels as plain functions over slices: SIMD and threads, no MLX, no models.
//!
//! Every kernel is row-invariant: the arithmetic order of an output row depends on that row alone, never on how
//! many rows are computed together or how many threads run. Tests hold each kernel to that, bit for bit.

mod attention;
mod conv;
mod delta;
mod gated;
mod gates;
mod grouped;
mod lanes;
mod linear;
mod norm;
mod pack;
mod parallel;
mod rope;
mod rows;
mod scalar;
mod simd;
mod top_k;

pub use attention::{AttentionShape, Softmax, append_kv, attention, latent_attention};
pub use conv::{ConvActivation, causal_conv};
pub use delta::{DeltaShape, gated_delta};
pub use gated::{Activation, gated};
pub use gates::{delta_gates, scale_by_sigmoid};
pub use grouped::{grouped_affine_linear, grouped_linear, grouped_microscaled_linear};
pub use linear::{Affine, FloatFormat, Microscaled, linear, microscaled_linear, quantized_linear};
pub use norm::rms_norm;
pub use pack::pack_floats;
pub use rope::{RopePairs, rope};
pub use rows::affine_rows;
pub use scalar::Scalar;
pub use top_k::top_k;
