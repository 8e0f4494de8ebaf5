//! The parts of the `lanner` program: configuration, the model, and the commands that use it. The numbers are
//! made in `engine`, the text in `chat`.

mod bench;
mod builtin;
mod cache_breakpoints;
pub mod catalog;
pub mod cli;
pub mod commands;
pub mod config;
mod conversation;
mod drafting;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod generate;
pub mod hub;
pub mod loading;
pub mod model;
mod model_files;
pub mod sampling;
pub mod server;
pub mod source;
pub mod terminal;
