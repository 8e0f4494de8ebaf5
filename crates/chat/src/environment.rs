//! Jinja environment for chat templates, configured as in transformers. Knows nothing of
//! conversations.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, escape_formatter,
    functions,
};

use crate::sandbox::budget::Budget;
use crate::strftime::strftime;

/// Maximum bytes of a template's error message that are reported.
const MAX_REFUSAL: usize = 4096;

/// Jinja's delimiters, and whitespace handling as in transformers.
pub(crate) fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.expect("the default delimiters are valid")
}

/// The environment; everything that templates use is charged to `budget`.
pub(crate) fn environment(budget: &Arc<Budget>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    let counted = budget.clone();
    environment.set_unknown_method_callback(move |state, value, name, args| {
        crate::python::method(&counted, state, value, name, args)
    });
    let counted = budget.clone();
    environment.set_formatter(move |out: &mut Output, state: &mut State, value: &Value| {
        print(&counted, out, state, value)
    });
    crate::filters::register(&mut environment, budget);
    crate::sandbox::operators::register(&mut environment, budget);
    register_functions(&mut environment, budget);
    environment
}

fn register_functions(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    // `debug` prints all variables.
    environment.remove_global("debug");
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    let counted = budget.clone();
    environment.add_function("raise_exception", move |message: Value| raise_exception(&counted, &message));
    let counted = budget.clone();
    environment.add_function("strftime_now", move |format: &str| {
        counted.work(format.len() as u64)?;
        strftime(format, counted.now())
    });
    let dict = Value::from_function(functions::dict);
    let counted = budget.clone();
    environment.add_function("dict", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        counted.entries(args.iter().filter_map(Value::len).sum())?;
        dict.call(state, &args)
    });
    let counted = budget.clone();
    environment.add_function("namespace", move |defaults: Option<ValueOrKwargs>| {
        let namespace = functions::namespace(defaults)?;
        counted.entries(namespace.len().unwrap_or(0))?;
        counted.register_namespace(&namespace);
        Ok::<_, Error>(namespace)
    });
}

/// Prints `{{ value }}`; minijinja does not use Python's exponents for floats.
fn print(budget: &Budget, out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) if matches!(state.auto_escape(), AutoEscape::None) => budget.output(text.len())?,
        // An escape has at most six characters.
        Some(text) => budget.output(6 * text.len())?,
        None => budget.display(value)?,
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_finite() && value.is_number() && !value.is_integer() => {
            Ok(out.write_str(&crate::json::float_repr(float))?)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub String);

fn raise_exception(budget: &Budget, message: &Value) -> Result<(), Error> {
    budget.display(message)?;
    let mut message = message.to_string();
    if message.len() > MAX_REFUSAL {
        let end = (0..=MAX_REFUSAL).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
}

/// Rewrites what transformers' Jinja has and minijinja lacks: all line endings become line feeds,
/// and `{% generation %}` blocks, which mark text for training, become scopes.
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
