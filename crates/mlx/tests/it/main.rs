//! Integration tests of mlx. Tests that measure their process are binaries beside this folder.

// A panic is the verdict of a test.
#![allow(clippy::unwrap_used)]

mod arrays;
mod metal;
mod safetensors;
