//! Every operation of the CUDA back end against the CPU's, bit for bit.
//!
//! Kernels run on an emulated device, which g++ compiles from the same sources, or with
//! `LANNER_GPU=1` on this machine's GPU. What the emulated device computes is compared with outputs
//! that a GPU has computed, too.

// A panic is the verdict of a test.
#![allow(clippy::unwrap_used)]

mod any_heads;
mod device;
mod emulation;
mod experts;
mod floats;
mod layers;
mod memory;
mod mxfp4;
mod neighbours;
mod products;
mod random;
mod recorded;
mod sequences;
mod support;
