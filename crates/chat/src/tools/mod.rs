//! Tool calls: how each model family writes them, and how they are read from a reply.

mod call_id;
mod definition;
mod dialect;
mod hermes;
mod json;
mod parser;
mod reader;
#[cfg(test)]
mod tests;

pub use definition::{InvalidTools, Tool, ToolSet};
pub use dialect::Dialect;
pub(crate) use parser::ToolParser;
