//! The tokens of a Lark grammar; strings and ranges become regular expressions.

use std::fmt;

use super::{gbnf::character, lark_regex::wrong};
use crate::Result;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Of a rule or a terminal.
    Name(String),
    /// A string, a range of characters or a regular expression, in one group.
    Regex(String),
    /// As regular expressions have it.
    Quantifier(String),
    /// `%import` and others.
    Directive(String),
    Arrow,
    Operator(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Token::Name(text) | Token::Quantifier(text) => write!(f, "`{text}`"),
            Token::Regex(text) => write!(f, "/{text}/"),
            Token::Directive(text) => write!(f, "`%{text}`"),
            Token::Arrow => write!(f, "`->`"),
            Token::Operator(operator) => write!(f, "`{operator}`"),
        }
    }
}

/// # Errors
/// A string or regular expression does not end, or a character that Lark does not know.
pub(super) fn tokens(lark: &str) -> Result<Vec<Token>> {
    let (mut tokens, mut rest) = (vec![], lark);
    while let Some(first) = rest.chars().next() {
        let before = lark[..lark.len() - rest.len()].trim_end_matches([' ', '\t']);
        let begins_line = before.is_empty() || before.ends_with('\n');
        let (token, length) = match first {
            c if c.is_whitespace() => (None, c.len_utf8()),
            '/' if rest.starts_with("//") => (None, rest.find('\n').unwrap_or(rest.len())),
            '#' => (None, rest.find('\n').unwrap_or(rest.len())),
            '"' => some(text(rest)?),
            '/' => some(regex(rest)?),
            '-' if rest.starts_with("->") => (Some(Token::Arrow), 2),
            '~' => some(repetition(rest).ok_or_else(|| wrong("`~` is followed by no number"))?),
            // These change the tree that Lark builds, not the texts that match.
            '?' | '!' if begins_line => (None, 1),
            '?' | '*' | '+' if ends_atom(tokens.last()) => (Some(Token::Quantifier(first.into())), 1),
            '%' => {
                let length = word(&rest[1..]);
                (Some(Token::Directive(rest[1..1 + length].to_owned())), 1 + length)
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let length = word(rest);
                (Some(Token::Name(rest[..length].to_owned())), length + priority(&rest[length..]))
            }
            '(' | ')' | '[' | ']' | '|' | ':' | '.' => (Some(Token::Operator(first)), 1),
            other => return Err(wrong(&format!("`{other}` is not expected"))),
        };
        tokens.extend(token);
        rest = &rest[length..];
    }
    Ok(tokens)
}

fn some((token, length): (Token, usize)) -> (Option<Token>, usize) {
    (Some(token), length)
}

fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// The length of a terminal's priority, such as `.2`.
fn priority(text: &str) -> usize {
    let Some(after) = text.strip_prefix('.') else { return 0 };
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    if digits == 0 { 0 } else { 1 + digits }
}

fn ends_atom(token: Option<&Token>) -> bool {
    matches!(token, Some(Token::Name(_) | Token::Regex(_) | Token::Operator(')' | ']')))
}

/// A string, or a range of two.
fn text(rest: &str) -> Result<(Token, usize)> {
    let (first, length) = quoted(rest)?;
    if let Some(after) = rest[length..].strip_prefix("..").filter(|after| after.starts_with('"')) {
        let (last, more) = quoted(after)?;
        let end = |text: &str| match text.chars().collect::<Vec<_>>()[..] {
            [one] => Ok(escaped(one)),
            _ => Err(wrong(&format!("a range goes from one character to another, not {text:?}"))),
        };
        return Ok((Token::Regex(format!("[{}-{}]", end(&first)?, end(&last)?)), length + 2 + more));
    }
    let regex: String = first.chars().map(escaped).collect();
    Ok(match rest[length..].starts_with('i') {
        true => (Token::Regex(format!("(?i:{regex})")), length + 1),
        false => (Token::Regex(format!("(?:{regex})")), length),
    })
}

fn quoted(text: &str) -> Result<(String, usize)> {
    let (mut value, mut rest) = (String::new(), &text[1..]);
    while !rest.starts_with('"') {
        let Some((character, length)) =
            character(rest).filter(|(character, _)| *character != '\n' || rest.starts_with('\\'))
        else {
            return Err(wrong("a string does not end"));
        };
        value.push(character);
        rest = &rest[length..];
    }
    Ok((value, text.len() - rest.len() + 1))
}

fn escaped(character: char) -> String {
    match character {
        c if c.is_ascii_alphanumeric() || c == ' ' || c == '_' => c.to_string(),
        c => format!("\\x{{{:x}}}", u32::from(c)),
    }
}

/// A regular expression between slashes, with its flags.
fn regex(rest: &str) -> Result<(Token, usize)> {
    let (mut end, bytes) = (1, rest.as_bytes());
    while bytes.get(end).is_some_and(|byte| *byte != b'/' && *byte != b'\n') {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    if bytes.get(end) != Some(&b'/') {
        return Err(wrong("a regular expression does not end"));
    }
    let (regex, after) = (rest[1..end].replace("\\/", "/"), &rest[end + 1..]);
    let flags = &after[..after.find(|c: char| !"imslux".contains(c)).unwrap_or(after.len())];
    // `l` and `u` choose the alphabet of Python's classes.
    let kept: String = flags.chars().filter(|flag| !"lu".contains(*flag)).collect();
    Ok((Token::Regex(format!("(?{kept}:{regex})")), end + 1 + flags.len()))
}

/// `~3` or `~2..4`.
fn repetition(rest: &str) -> Option<(Token, usize)> {
    let number = |text: &str| {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        Some((text[..digits].parse::<u16>().ok()?, digits))
    };
    let spaces = rest[1..].len() - rest[1..].trim_start().len();
    let (least, digits) = number(&rest[1 + spaces..])?;
    let length = 1 + spaces + digits;
    match rest[length..].strip_prefix("..").and_then(number) {
        Some((most, digits)) => Some((Token::Quantifier(format!("{{{least},{most}}}")), length + 2 + digits)),
        None => Some((Token::Quantifier(format!("{{{least}}}")), length)),
    }
}
