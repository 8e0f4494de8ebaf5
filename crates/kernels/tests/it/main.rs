//! Kernels against plain computations, and against themselves one row at a time.

mod attention;
mod elementwise;
mod grouped;
mod linear;
mod recurrent;
mod rope;
mod sample;
mod support;
