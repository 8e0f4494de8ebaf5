//! Lark grammars without recursion as one regular expression, for places where a text is written
//! inside another syntax, such as a string of JSON.

use std::collections::BTreeMap;

use super::lark_tokens::{Token, tokens};
use crate::{Error, Result};

/// Maximum bytes of the expression: rules are repeated wherever they are used.
const MAX_BYTES: usize = 256 << 10;
/// Terminals of Lark's library.
const COMMON: [(&str, &str); 21] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9A-Fa-f]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"),
    ("FLOAT", r"(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"),
    ("SIGNED_FLOAT", r"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"),
    ("NUMBER", r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("ESCAPED_STRING", r#""(?:[^"\\\n]|\\[^\n])*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[A-Za-z_][A-Za-z_0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(?:\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
];

/// A regular expression that matches the same texts as a Lark grammar, from `^` to `$`.
///
/// # Errors
/// Invalid syntax, a rule that refers to itself, or more than 256 KiB of expression.
pub fn lark_to_regex(lark: &str) -> Result<String> {
    let mut grammar = Grammar::parse(lark)?;
    let ignored: Result<Vec<String>> =
        std::mem::take(&mut grammar.ignored).iter().map(|body| grammar.expand("%IGNORE", body)).collect();
    let ignored = ignored?;
    if !ignored.is_empty() {
        grammar.between = format!("(?:{})*", ignored.join("|"));
    }
    let start = grammar.named("start")?;
    Ok(format!("^{}{start}$", grammar.between))
}

#[derive(Default)]
struct Grammar {
    rules: BTreeMap<String, Vec<Token>>,
    ignored: Vec<Vec<Token>>,
    /// What may stand after each terminal of a rule, and before all of them.
    between: String,
    known: BTreeMap<String, String>,
    /// Rules that are being expanded.
    open: Vec<String>,
}

impl Grammar {
    fn parse(lark: &str) -> Result<Grammar> {
        let mut grammar = Grammar::default();
        for statement in statements(tokens(lark)?) {
            match &statement[..] {
                [] => {}
                [Token::Directive(name), body @ ..] => grammar.directive(name, body)?,
                [Token::Name(name), Token::Operator(':'), body @ ..] => {
                    if grammar.rules.insert(name.clone(), body.to_vec()).is_some() {
                        return Err(wrong(&format!("the rule `{name}` is defined twice")));
                    }
                }
                [first, ..] => return Err(wrong(&format!("a rule cannot begin with {first}"))),
            }
        }
        Ok(grammar)
    }

    fn directive(&mut self, name: &str, body: &[Token]) -> Result<()> {
        match (name, body) {
            ("ignore", body) => self.ignored.push(body.to_vec()),
            ("import", [Token::Name(library), Token::Operator('.'), Token::Name(name), rest @ ..])
                if library == "common" =>
            {
                let alias = match rest {
                    [Token::Arrow, Token::Name(alias)] => alias,
                    [] => name,
                    _ => return Err(wrong(&format!("`%import common.{name}` is followed by more"))),
                };
                let found = COMMON.iter().find(|(known, _)| known == name);
                let (_, regex) =
                    found.ok_or_else(|| wrong(&format!("Lark's library has no terminal `{name}` here")))?;
                self.rules.insert(alias.clone(), vec![Token::Regex(format!("(?:{regex})"))]);
            }
            _ => return Err(wrong(&format!("`%{name}` in this form is not supported"))),
        }
        Ok(())
    }

    fn named(&mut self, name: &str) -> Result<String> {
        if let Some(known) = self.known.get(name) {
            return Ok(known.clone());
        }
        if self.open.iter().any(|open| open == name) {
            return Err(wrong(&format!(
                "the rule `{name}` refers to itself; without recursion it would work"
            )));
        }
        let body = self.rules.get(name).cloned();
        let body = body.ok_or_else(|| wrong(&format!("it has no rule `{name}`")))?;
        self.open.push(name.to_owned());
        let regex = self.expand(name, &body)?;
        self.open.pop();
        self.known.insert(name.to_owned(), regex.clone());
        Ok(regex)
    }

    fn expand(&mut self, name: &str, body: &[Token]) -> Result<String> {
        let mut rest = body;
        let regex = self.alternatives(&mut rest, is_terminal(name))?;
        match rest.first() {
            None => Ok(regex),
            Some(token) => Err(wrong(&format!("{token} is not expected in `{name}`"))),
        }
    }

    fn alternatives(&mut self, rest: &mut &[Token], in_terminal: bool) -> Result<String> {
        let mut regex = String::from("(?:");
        loop {
            match rest.first() {
                Some(Token::Operator('|')) => {
                    *rest = &rest[1..];
                    regex.push('|');
                }
                // The name of an alternative.
                Some(Token::Arrow) if matches!(rest.get(1), Some(Token::Name(_))) => *rest = &rest[2..],
                None | Some(Token::Operator(')' | ']')) => return Ok(regex + ")"),
                Some(_) => {
                    let item = self.item(rest, in_terminal)?;
                    regex.push_str(&item);
                }
            }
            if regex.len() > MAX_BYTES {
                return Err(wrong(&format!("as a regular expression it has more than {MAX_BYTES} bytes")));
            }
        }
    }

    /// An atom with its quantifier.
    fn item(&mut self, rest: &mut &[Token], in_terminal: bool) -> Result<String> {
        let atom = self.atom(rest, in_terminal)?;
        let Some(Token::Quantifier(quantifier)) = rest.first() else { return Ok(atom) };
        *rest = &rest[1..];
        Ok(format!("(?:{atom}){quantifier}"))
    }

    fn atom(&mut self, rest: &mut &[Token], in_terminal: bool) -> Result<String> {
        let Some((first, after)) = rest.split_first() else { return Err(wrong("a rule ends too early")) };
        *rest = after;
        let between = if in_terminal { String::new() } else { self.between.clone() };
        match first {
            Token::Regex(regex) => Ok(regex.clone() + &between),
            Token::Name(name) => {
                let after = if is_terminal(name) { &between } else { "" };
                Ok(self.named(name)? + after)
            }
            Token::Operator(open @ ('(' | '[')) => {
                let (close, optional) = if *open == '(' { (')', "") } else { (']', "?") };
                let inner = self.alternatives(rest, in_terminal)?;
                match rest.split_first() {
                    Some((Token::Operator(found), after)) if *found == close => *rest = after,
                    _ => return Err(wrong(&format!("`{open}` is not closed"))),
                }
                Ok(inner + optional)
            }
            other => Err(wrong(&format!("{other} is not expected"))),
        }
    }
}

/// Terminals are in upper case.
fn is_terminal(name: &str) -> bool {
    name.chars().any(char::is_uppercase)
}

/// The tokens of each rule or directive, which begins on a new line.
fn statements(tokens: Vec<Token>) -> Vec<Vec<Token>> {
    let begins = |at: usize| {
        let is_rule = matches!(tokens[at..], [Token::Name(_), Token::Operator(':'), ..]);
        is_rule || matches!(tokens[at], Token::Directive(_))
    };
    let mut statements: Vec<Vec<Token>> = vec![vec![]];
    for (at, token) in tokens.iter().enumerate() {
        if begins(at) {
            statements.push(vec![]);
        }
        if let Some(last) = statements.last_mut() {
            last.push(token.clone());
        }
    }
    statements
}

pub(super) fn wrong(message: &str) -> Error {
    Error::Grammar(message.to_owned())
}
