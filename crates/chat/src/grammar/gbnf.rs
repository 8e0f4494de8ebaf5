//! llama.cpp's grammar notation, GBNF, as Lark.
//!
//! `root ::= "a" [0-9]+ (item | other){2,3}` becomes `start: "a" /[0-9]/+ (item | other){2,3}`.

use crate::{Error, Result};

/// The Lark grammar that matches the same texts.
///
/// # Errors
/// Invalid syntax (the message names the line), or no rule `root`.
pub(super) fn to_lark(gbnf: &str) -> Result<String> {
    let (mut lark, mut rest, mut depth) = (String::new(), gbnf, 0usize);
    // Whether a repetition such as `{2,3}` is open.
    let mut repeats = false;
    while let Some(first) = rest.chars().next() {
        let (written, length) = match first {
            '#' => (String::new(), rest.find('\n').unwrap_or(rest.len())),
            '"' => literal(rest).ok_or_else(|| wrong(gbnf, rest, "this string does not end"))?,
            '[' => class(rest).ok_or_else(|| wrong(gbnf, rest, "this class of characters does not end"))?,
            '.' => ("/(.|\\n)/".to_owned(), 1),
            c if is_name(c) && !repeats => rule(rest, depth == 0 && !lark.ends_with("| ")),
            c if c.is_whitespace() => {
                (if lark.ends_with([' ', '\n']) { "" } else { " " }.to_owned(), c.len_utf8())
            }
            c => {
                match c {
                    '(' => depth += 1,
                    ')' => depth = depth.saturating_sub(1),
                    '{' | '}' => repeats = c == '{',
                    '|' | '*' | '+' | '?' | ',' | '0'..='9' => {}
                    other => return Err(wrong(gbnf, rest, &format!("`{other}` is not expected"))),
                }
                (c.to_string(), c.len_utf8())
            }
        };
        lark.push_str(&written);
        rest = &rest[length..];
    }
    match lark.contains("\nstart:") {
        true => Ok(lark),
        false => Err(Error::Grammar("it has no rule `root`".into())),
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// A rule's name; with the start of its definition, if it is defined here.
fn rule(text: &str, may_define: bool) -> (String, usize) {
    let length = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let name = match &text[..length] {
        "root" => "start".to_owned(),
        // Lower case is a rule in Lark; names that differ in case must stay distinct.
        name => {
            let escape = |c: char| match c {
                'a'..='z' | '0'..='9' => c.to_string(),
                '_' => "__".into(),
                '-' => "_".into(),
                upper => format!("_{}_", upper.to_ascii_lowercase()),
            };
            format!("r_{}", name.chars().map(escape).collect::<String>())
        }
    };
    let after = text[length..].trim_start();
    match after.strip_prefix("::=") {
        Some(rest) if may_define => (format!("\n{name}: "), text.len() - rest.len()),
        _ => (name, length),
    }
}

/// A string in quotes; `None` if it does not end.
fn literal(text: &str) -> Option<(String, usize)> {
    let (mut value, mut rest) = (String::new(), &text[1..]);
    while !rest.starts_with('"') {
        let (character, length) = character(rest)?;
        value.push(character);
        rest = &rest[length..];
    }
    // Lark's strings have JSON's escapes.
    let quoted = serde_json::Value::from(value).to_string();
    Some((quoted, text.len() - rest.len() + 1))
}

/// A class of characters as a regular expression; `None` if it does not end.
fn class(text: &str) -> Option<(String, usize)> {
    let after = text[1..].strip_prefix('^');
    let (mut regex, mut rest) =
        (String::from(if after.is_some() { "/[^" } else { "/[" }), after.unwrap_or(&text[1..]));
    let empty = regex.len();
    while !rest.starts_with(']') {
        // The dash of a range; every other character is escaped.
        if rest.starts_with('-') && !rest.starts_with("-]") && regex.len() > empty {
            regex.push('-');
            rest = &rest[1..];
        }
        let (character, length) = character(rest)?;
        regex.push_str(&format!("\\u{{{:x}}}", u32::from(character)));
        rest = &rest[length..];
    }
    Some((regex + "]/", text.len() - rest.len() + 1))
}

/// The first character of a string or class, and its length as written.
pub(super) fn character(text: &str) -> Option<(char, usize)> {
    let first = text.chars().next()?;
    if first != '\\' {
        return Some((first, first.len_utf8()));
    }
    let escaped = text[1..].chars().next()?;
    let hex = |digits: usize| {
        let code = u32::from_str_radix(text.get(2..2 + digits)?, 16).ok()?;
        Some((char::from_u32(code)?, 2 + digits))
    };
    match escaped {
        'n' => Some(('\n', 2)),
        'r' => Some(('\r', 2)),
        't' => Some(('\t', 2)),
        'x' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        other => Some((other, 1 + other.len_utf8())),
    }
}

/// An error in the line of `gbnf` where `rest` begins.
fn wrong(gbnf: &str, rest: &str, message: &str) -> Error {
    let line = gbnf[..gbnf.len() - rest.len()].matches('\n').count() + 1;
    Error::Grammar(format!("line {line}: {message}"))
}
