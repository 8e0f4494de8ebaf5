//! Operations and layers of neural networks. Each operation has one file here and one of the same
//! name in each back end below `backend/`. No layer reads a checkpoint or knows its model.
//!
//! ```
//! use lanner_nn::RmsNorm;
//! use mlx::Array;
//!
//! let norm = RmsNorm::plain(2, 0.0);
//! let out = norm.forward(&Array::from_slice(&[5.0_f32, 5.0], &[1, 2]));
//! assert_eq!(out.to_vec::<f32>()?, [1.0, 1.0]);
//! # Ok::<(), mlx::Error>(())
//! ```

mod attention;
mod backend;
mod conv;
mod core_attention;
mod delta_net;
mod embedding;
mod gelu;
mod kv_buffer;
mod layer_norm;
mod linear;
mod matrix;
mod mlp;
mod moe;
mod norm;
mod precision;
mod quant;
mod recurrence;
mod residual;
mod rope;
mod softcap;
mod stacked_linear;
mod storage;

pub use kernels::{read_bandwidth, set_threads, simd_level, threads};

pub use attention::{KEY_BLOCK, Softmax, append_kv, attend, attend_cached, attend_latent, attend_together};
pub use backend::{
    cuda::{
        AllowedTokens, KernelOptions, TokenDraw, TokenList, allow_persistent_kernel, allow_warpgroups,
        kernel_logs, sample_tokens, set_kernel_options,
    },
    placed, take_fallbacks, take_row_calls, use_cuda, use_gpu, use_shapes_only,
};
pub use core_attention::{CoreAttention, KvRow};
pub use delta_net::{DeltaHeads, DeltaNet, DeltaRow, DeltaWeights};
pub use embedding::Embedding;
pub use gelu::{Gelu, gelu};
pub use kv_buffer::{KvBuffer, KvBufferCopy, copy_tokens};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use matrix::Matrix;
pub use mlp::{Activation, Mlp, gated};
pub use moe::{Experts, MixtureOfExperts, Router, Routing, SharedExpert, top_k};
pub use norm::RmsNorm;
pub use precision::{Precision, precision, set_kv_cache_dtype, set_precision};
pub use quant::quantize;
pub use recurrence::Recurrence;
pub use residual::Residual;
pub use rope::{Rope, RopePairs, rope};
pub use softcap::softcap;
pub use stacked_linear::StackedLinear;

#[cfg(test)]
mod tests;

/// Splits the last axis in two.
#[track_caller]
pub fn halves(x: &mlx::Array) -> [mlx::Array; 2] {
    let half = x.dim(-1) / 2;
    [x.slice(-1, 0, half), x.slice(-1, half, 2 * half)]
}
