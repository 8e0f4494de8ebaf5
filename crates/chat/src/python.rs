//! Python's filters, tests and methods, where minijinja and its pycompat lack them or differ.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

/// Replaces the filters and tests of minijinja that differ from Jinja2.
pub(crate) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(
        "float",
        |state: &State, value: &Value, default: Option<Value>, kwargs: Kwargs| {
            let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0.0));
            filters::float(state, value, Some(default), kwargs)
        },
    );
    environment.add_filter(
        "int",
        |state: &State, value: &Value, default: Option<Value>, base: Option<u32>, kwargs: Kwargs| {
            let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0));
            filters::int(state, value, Some(default), base, kwargs)
        },
    );
    use ValueKind::{Iterable, Map, Plain, Seq, String, Undefined};
    environment.add_test("callable", |value: &Value| value.kind() == Plain);
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
    // Whatever has a length and can be indexed; a slice of a list is lazy here.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
}

/// Called for a method that minijinja does not know.
pub(crate) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.as_str() {
        Some(text) => string_method(text, name, args)?,
        None => collection_method(value, name, args)?,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" => Value::from(strip(text, args, true, true)?),
        "lstrip" => Value::from(strip(text, args, true, false)?),
        "rstrip" => Value::from(strip(text, args, false, true)?),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "rsplit" => rsplit(text, args)?,
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            triple(before, if before.len() == text.len() { "" } else { separator }, after)
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            match text.rsplit_once(separator) {
                Some((before, after)) => triple(before, separator, after),
                None => triple("", "", text),
            }
        }
        _ => return Ok(None),
    }))
}

fn triple(before: &str, separator: &str, after: &str) -> Value {
    Value::from(Tuple::from([before, separator, after].map(Value::from)))
}

/// Python strips the separators U+001C to U+001F too, which Rust does not count as white space.
fn strip<'a>(text: &'a str, args: &[Value], start: bool, end: bool) -> Result<&'a str, Error> {
    let (characters,): (Option<&str>,) = from_args(args)?;
    let strips = |c: char| match characters {
        Some(set) => set.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let text = if start { text.trim_start_matches(strips) } else { text };
    Ok(if end { text.trim_end_matches(strips) } else { text })
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
    let count = limit.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "rsplit: empty separator")),
        Some(separator) => text.rsplitn(count, separator).collect(),
        None => text.trim_end().rsplitn(count, char::is_whitespace).filter(|part| !part.is_empty()).collect(),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn collection_method(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match (value.kind(), name) {
        (ValueKind::Seq | ValueKind::Map, "copy") => Some(value.clone()),
        (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = from_args(args)?;
            let position = value.try_iter()?.position(|item| item == *wanted);
            let missing = || Error::new(ErrorKind::InvalidOperation, format!("{wanted} is not in list"));
            Some(Value::from(position.ok_or_else(missing)?))
        }
        _ => None,
    })
}
