//! Jinja as transformers sets it up for chat templates. Knows nothing of conversations.

use minijinja::syntax::SyntaxConfig;
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, escape_formatter,
};

use crate::clock::strftime;

/// Steps a template may take on a conversation of this many messages.
///
/// Several published templates look through all messages at every message, so the limit grows with the square. Twenty
/// million steps take about a second; the limit stops growing at twenty times that.
pub(crate) fn fuel(messages: usize) -> u64 {
    let messages = messages as u64;
    messages.saturating_mul(messages).saturating_mul(50).saturating_add(20_000_000).min(400_000_000)
}

/// Jinja as transformers sets it up.
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters are valid"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(crate::python::method);
    environment.set_formatter(print);
    crate::filters::register(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime(format, jiff::Zoned::now().datetime()));
    environment
}

/// Prints `{{ value }}`; minijinja never uses Python's exponents for floats.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_finite() && value.is_number() && !value.is_integer() => {
            Ok(out.write_str(&crate::json::float_repr(float))?)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// What a template said when it called `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub String);

fn raise_exception(message: Value) -> Result<(), Error> {
    let refusal = Refusal(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(refusal))
}

/// Makes two things of transformers' Jinja known to minijinja: any line ending is a line feed, and `{% generation %}`
/// blocks, which only mark the model's text for training, are plain scopes.
pub(crate) fn jinja_source(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let word_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        for (word, scope) in [("generation", "with"), ("endgeneration", "endwith")] {
            let Some(after) = tag[word_at..].strip_prefix(word) else { continue };
            if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
                out.push_str(&tag[..word_at]);
                out.push_str(scope);
                rest = after;
            }
        }
    }
    out + rest
}
