//! Kernels against plain computations, and against themselves one row at a time.

// A panic is the verdict of a test.
#![allow(clippy::unwrap_used)]

mod attention;
mod elementwise;
mod grouped;
mod linear;
mod recurrent;
mod rope;
mod sample;
mod support;
