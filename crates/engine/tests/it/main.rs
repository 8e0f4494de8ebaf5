//! Integration tests of the engine. Tests that need a process of their own are binaries beside this
//! folder.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod broken;
mod dflash;
mod disk;
mod disk_bits;
mod draft_model;
mod embeddings;
mod footprint;
mod golden;
mod images;
mod kv_cache_dtype;
mod memory_pressure;
mod prefix;
mod prefix_small;
mod quantize;
mod random;
mod requests;
mod slices;
mod speculate;
mod support;
