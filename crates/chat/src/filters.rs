//! Jinja2's filters and tests, where minijinja's differ.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

/// Replaces the filters and tests of minijinja that differ from Jinja2, and adds those it lacks.
pub(crate) fn register(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", crate::json::tojson);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("float", float);
    environment.add_filter("int", int);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("replace", replace);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_test("iterable", is_iterable);
    // What has a length and can be indexed. A slice of a list, a sequence in Python, is lazy here.
    environment.add_test("sequence", is_iterable);
}

/// Jinja2 also loops over undefined values, but not over `None`.
fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// `default(value, default_value="", boolean=False)`; minijinja takes no names.
fn default(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let argument = |index: usize, name: &str| match args.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None if kwargs.has(name) => kwargs.get::<Value>(name).map(Some),
        None => Ok(None),
    };
    let fallback = argument(0, "default_value")?.unwrap_or_else(|| Value::from(""));
    let falsy_too = argument(1, "boolean")?.is_some_and(|b| b.is_true());
    kwargs.assert_all_used()?;
    Ok(if value.is_undefined() || (falsy_too && !value.is_true()) { fallback } else { value.clone() })
}

/// Text that is no number gives the default, 0.
fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0));
    filters::int(state, &trimmed(value), Some(default), base, kwargs)
}

/// Text that is no number gives the default, 0.0.
fn float(state: &State, value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0.0));
    filters::float(state, &trimmed(value), Some(default), kwargs)
}

/// Python reads numbers with white space around them.
fn trimmed(value: &Value) -> Value {
    value.as_str().map_or_else(|| value.clone(), |text| Value::from(text.trim()))
}

/// An undefined value has no items.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// `replace(s, old, new, count=None)`; minijinja takes no count.
fn replace(
    value: &Value,
    old: &Value,
    new: &Value,
    count: Option<i64>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let count = count.or(kwargs.get("count")?).and_then(|n| usize::try_from(n).ok());
    kwargs.assert_all_used()?;
    let (text, old, new) = (value.to_string(), old.to_string(), new.to_string());
    if text.len().saturating_mul(new.len()) > 1 << 30 {
        return Err(Error::new(ErrorKind::InvalidOperation, "replace: the result is too long"));
    }
    Ok(match count {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    })
}
