//! Kernels with x86 intrinsics, one folder per instruction set.
//!
//! They import the data types of the operations they implement, never the functions that select
//! among kernels.

#![allow(clippy::needless_range_loop, reason = "closures do not get the instruction set of their callers")]

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
mod delta;
mod unpack;
