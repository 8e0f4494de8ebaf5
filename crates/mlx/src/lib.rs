//! Arrays and operations on MLX, the only crate with C++ in it; knows nothing about models.
//!
//! Building an operation panics on a shape or type bug, at the caller's line; evaluation, read-back
//! and loading return [`Result`], because memory, devices and files can fail at any time.
//!
//! ```
//! use lanner_mlx::Array;
//!
//! let x = Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2]);
//! assert_eq!(x.sum(-1, false).to_vec::<f32>()?, [3.0, 7.0]);
//! # Ok::<(), lanner_mlx::Error>(())
//! ```

mod apply;
mod array;
mod bridge;
pub mod cuda;
mod dtype;
mod eager;
mod error;
mod eval;
pub mod fast;
mod frozen;
mod kernel;
pub mod load;
pub mod metal;
mod ops;
mod process;
pub mod profile;
pub mod quant;
mod read;
mod streams;

pub use apply::{OutputSpec, apply, apply_in_place, apply_many};
pub use array::Array;
pub use dtype::{Dtype, Element};
pub use error::{Error, Result, panic_message};
pub use eval::*;
pub use frozen::FrozenArray;
pub use kernel::{Input, Output};
pub use process::exit_now;
pub use read::PendingRead;
pub use streams::Streams;

#[cfg(test)]
#[path = "../build/platform.rs"]
mod platform;
