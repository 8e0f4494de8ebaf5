//! Grammars of tool calls, compiled from the tools' schemas.

use super::{Dialect, ToolSet, call_grammar::Lark, definition::InvalidTools, harmony};
use crate::{
    Error, Result,
    grammar::{Grammars, Source, Trigger},
};

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
) -> std::result::Result<(Source, Vec<Trigger>), InvalidTools> {
    let calls = (dialect.syntax().grammar)(tools)?;
    let literal = |text: &str| grammars.literal(text);
    let mut lark = Lark::new(&literal);
    let preamble = match dialect.is_whole_reply() && at_once {
        true => harmony::preamble(&mut lark, harmony::COMMENTARY)?,
        false => String::new(),
    };
    let source = lark.source(calls, tools.parallel, &preamble)?;
    let triggers = (dialect.syntax().grammar_triggers)(tools);
    let triggers = triggers.iter().map(|text| grammars.trigger(text));
    Ok((Source::Lark(source), if at_once { Vec::new() } else { triggers.collect() }))
}

/// The grammar of a whole reply whose content has this format: of gpt-oss, perhaps reasoning, then
/// the channel of answers.
///
/// # Errors
/// The format cannot be honoured.
pub fn in_final_channel(format: &Source, grammars: &Grammars) -> Result<Source> {
    let literal = |text: &str| grammars.literal(text);
    let mut lark = Lark::new(&literal);
    let preamble = harmony::preamble(&mut lark, harmony::FINAL);
    let preamble = preamble.map_err(|error| Error::Grammar(error.message))?;
    Ok(Source::Lark(lark.with_start(&format!("{preamble} {}", format.expression()?))))
}
