//! The `lanner` program: configuration, commands, the server and the hub. Tokens are generated in
//! `engine`, text is handled in `chat`.
//!
//! ```
//! use clap::Parser;
//! use lanner::cli::Cli;
//!
//! assert!(Cli::try_parse_from(["lanner", "run", "--max-tokens", "8", "Hello"]).is_ok());
//! assert!(Cli::try_parse_from(["lanner", "fly"]).is_err());
//! ```

pub mod attach;
mod bench;
mod builtin;
mod cache_breakpoints;
pub mod catalog;
pub mod cli;
pub mod commands;
pub mod config;
mod conversation;
mod doctor;
mod drafting;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod generate;
mod grammar;
mod host;
pub mod hub;
pub mod image;
pub mod image_url;
pub mod keep_alive;
pub mod launch;
pub mod loading;
pub mod logging;
mod mcp_tools;
pub mod memory;
pub mod model;
mod model_files;
mod pooling;
pub mod sampling;
pub mod server;
pub mod service;
pub mod source;
pub mod terminal;
pub mod thinking;
mod tune;
