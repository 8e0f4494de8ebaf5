//! Tests of the whole crate on files and sizes.

mod geometry;
mod goldens;
mod hostile;
mod support;
