//! Definitions of each dialect of tool calls.

use std::{future::Future, pin::Pin, sync::Arc};

use super::{
    ToolSet,
    call_grammar::CallGrammar,
    definition::InvalidTools,
    reader::{Reader, Result},
};

/// The definition of a tool-call dialect.
pub(super) struct Syntax {
    pub name: &'static str,
    /// Models that write it, for the documentation.
    pub models: &'static str,
    /// A call of `f` with `a` = 1.
    pub example: &'static str,
    /// Tokens that a decoder must show although they are special.
    pub markers: &'static [&'static str],
    /// Prefix of the ids of calls, and how many random characters follow.
    pub id: (&'static str, usize),
    /// The texts that begin a call or a section of calls.
    pub triggers: fn(&ToolSet) -> Vec<String>,
    /// The texts that begin the grammar.
    pub grammar_triggers: fn(&ToolSet) -> Vec<String>,
    pub read: fn(Reader, Arc<ToolSet>) -> CallReading,
    pub grammar: fn(&ToolSet) -> std::result::Result<CallGrammar, InvalidTools>,
}

/// A suspended parser of calls.
pub(super) type CallReading = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The usual ids, as OpenAI's.
pub(super) const OPENAI_ID: (&str, usize) = ("call_", 24);
