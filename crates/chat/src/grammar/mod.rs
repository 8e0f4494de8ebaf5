//! Grammars that an answer must follow: JSON Schema, regular expressions, choices and Lark,
//! compiled by llguidance. Knows nothing of sampling.
//!
//! [`Grammars`] holds what all grammars of a tokenizer share, a [`Grammar`] is compiled from a
//! [`Source`], and a [`Matcher`] follows one answer token by token.
//!
//! A [`Source::Lark`] grammar has the syntax of llguidance: a rule `start`, rules in lower case,
//! terminals in upper case, `"text"`, `/regex/`, special tokens as `<[id]>`, JSON as `%json {..}`.
//! [`Grammars::literal`] writes a text with its special tokens, [`Source::expression`] a source.

mod compile;
mod gbnf;
mod lark_regex;
mod lark_tokens;
mod limits;
mod matcher;
mod schema;
mod schema_disjoint;
mod schema_rewrite;
mod start;
mod token_env;
mod watch;

use std::sync::Arc;

use serde_json::Value;

pub use compile::{Grammar, Grammars};
pub use lark_regex::lark_to_regex;
pub use matcher::Matcher;
pub use start::{ReasoningStart, Start, Trigger};

/// Text that an answer must match, from its first to its last character.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// JSON that is valid against a schema (draft 2020-12 unless `$schema` names another).
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// A regular expression in the syntax of Rust's regex crate, without look-around; `\d` and `\w`
    /// are ASCII.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A Lark grammar in llguidance's syntax.
    Lark(String),
    /// A grammar in llama.cpp's notation.
    Gbnf(String),
}

/// Tokens that may come next: bit `id % 32` of word `id / 32`; `None`: all of them.
pub type Mask = Option<Arc<[u32]>>;
