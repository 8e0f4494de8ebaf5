//! Limits of grammars: their size and nesting, and the work that llguidance may do for one.

use llguidance::api::ParserLimits;

use crate::{Error, Result};

/// Maximum bytes of a source.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of brackets open at once: grammar parsers recurse.
const MAX_NESTING: usize = 200;
const MAX_CHOICES: usize = 10_000;

/// llguidance's defaults, with messages that fit into a response.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits { verbose_errors: false, ..ParserLimits::default() }
}

/// # Errors
/// The source is too large or nested too deeply.
pub(super) fn check_text(source: &str) -> Result<()> {
    if source.len() > MAX_BYTES {
        return Err(Error::Grammar(format!("it has more than {MAX_BYTES} bytes")));
    }
    let mut open = 0usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => continue,
        }
        if open > MAX_NESTING {
            return Err(Error::Grammar(format!("it is nested more than {MAX_NESTING} levels deep")));
        }
    }
    Ok(())
}

/// # Errors
/// There is no choice, or there are too many.
pub(super) fn check_choices(choices: &[String]) -> Result<()> {
    match choices.len() {
        0 => Err(Error::Grammar("there is no choice in it; give at least one text".into())),
        1..=MAX_CHOICES => Ok(()),
        _ => Err(Error::Grammar(format!("it has more than {MAX_CHOICES} choices"))),
    }
}
