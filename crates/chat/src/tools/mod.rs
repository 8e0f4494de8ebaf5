//! Tool calls: how each model family writes them, how they are read from a reply, and the grammar
//! that keeps them valid.

mod call_grammar;
mod call_id;
mod compile;
mod deepseek;
mod definition;
mod dialect;
mod gemma4;
mod gemma4_schema;
mod glm;
mod harmony;
mod hermes;
mod json;
mod kimi;
mod literal;
mod llama;
mod mistral;
mod parameters;
mod parser;
mod pythonic;
mod qwen_xml;
mod reader;
mod syntax;
#[cfg(test)]
mod tests;

pub use compile::{grammar, in_final_channel};
pub use definition::{InvalidTools, Tool, ToolSet};
pub use dialect::Dialect;
pub(crate) use parser::ToolParser;
