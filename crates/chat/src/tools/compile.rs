//! Grammars of tool calls, compiled from the tools' schemas.

use super::{Dialect, ToolSet, call_grammar::Lark, definition::InvalidTools, harmony};
use crate::grammar::{Grammars, Source, Trigger};

/// The grammar of the calls of these tools, and the triggers that begin it within content. With
/// `at_once`, the reply is a call from its first character on.
///
/// # Errors
/// A schema cannot be honoured.
pub fn grammar(
    dialect: Dialect,
    tools: &ToolSet,
    grammars: &Grammars,
    at_once: bool,
) -> Result<(Source, Vec<Trigger>), InvalidTools> {
    let calls = (dialect.syntax().grammar)(tools)?;
    let literal = |text: &str| grammars.literal(text);
    let mut lark = Lark::new(&literal);
    let preamble = match dialect.is_whole_reply() && at_once {
        true => harmony::preamble(&mut lark)?,
        false => String::new(),
    };
    let source = lark.source(calls, tools.parallel, &preamble)?;
    let triggers = (dialect.syntax().grammar_triggers)(tools);
    let triggers = triggers.iter().map(|text| grammars.trigger(text));
    Ok((Source::Lark(source), if at_once { Vec::new() } else { triggers.collect() }))
}
