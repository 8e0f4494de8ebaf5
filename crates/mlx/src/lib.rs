//! Arrays and operations on MLX, the only crate with C++ behind it; knows nothing about models.
//!
//! Building an operation panics on a shape or type bug, at the caller's line; evaluation, read-back and loading
//! return [`Result`], because memory, devices and files can fail at any time.

mod array;
mod bridge;
mod constant;
mod copies;
mod delta;
mod error;
mod eval;
mod exit;
pub mod fast;
mod fused;
mod heads;
mod kernel;
mod kv;
mod layers;
pub mod load;
mod matrix;
mod ops;
mod packed;
mod portable;
mod precision;
pub mod profile;
pub mod quant;
mod recurrence;
mod streams;

pub use ::kernels::{read_bandwidth, simd_level};
pub use array::{Array, Element};
pub use bridge::Dtype;
pub use delta::{DeltaHeads, DeltaNet, DeltaRow, DeltaWeights, delta_net};
pub use error::{Error, Result, panic_message};
pub use eval::*;
pub use exit::exit_now;
pub use heads::{Heads, KvRow, attend_heads};
pub use kernel::{Input, Output, OutputSpec, apply};
pub use kv::{KEY_BLOCK, KvBuffer, Softmax, append, attend, attend_latent, attend_over, cut};
pub use layers::{Linear, RmsNorm};
pub use matrix::Matrix;
pub use precision::{Precision, precision, set_precision};
pub use recurrence::Recurrence;
pub use streams::Streams;

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "../build/platform.rs"]
mod platform;
