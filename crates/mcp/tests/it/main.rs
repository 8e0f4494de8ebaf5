//! The client against servers that behave and servers that do not.

// A panic is the verdict of a test.
#![allow(clippy::unwrap_used)]

mod fake;
mod hostile;
mod http;
mod stdio;
