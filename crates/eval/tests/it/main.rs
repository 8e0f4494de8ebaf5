//! The evaluation against a scripted server, and its rubrics on written answers.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod answers;
mod reports;
mod runner;
mod scripted;
