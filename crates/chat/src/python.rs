//! Python's methods of strings, lists and dicts where minijinja's pycompat lacks them or differs.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use crate::sandbox::budget::{Budget, MAX_WIDTH};
use crate::sandbox::costs;

/// Calls a method that minijinja does not have.
pub(crate) fn method(
    budget: &Budget,
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    costs::method(budget, value, name, args)?;
    budget.own(uncounted_method(state, value, name, args)?)
}

fn uncounted_method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.as_str() {
        Some(text) => string_method(text, name, args)?,
        None => collection_method(value, name, args)?,
    };
    match own {
        Some(result) => Ok(result),
        None if name == "split" => {
            let (separator, limit) = split_arguments(args)?;
            let args = [separator.map_or(Value::from(()), Value::from), Value::from(limit)];
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, &args)
        }
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
            text.split_once(separator).map_or_else(|| triple(text, "", ""), |(a, b)| triple(a, separator, b))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            text.rsplit_once(separator).map_or_else(|| triple("", "", text), |(a, b)| triple(a, separator, b))
        }
        "find" => Value::from(find(text, args)?.map_or(-1, |at| at as i64)),
        "index" => {
            Value::from(find(text, args)?.ok_or_else(|| invalid("index: substring not found".into()))?)
        }
        "title" => Value::from(title(text)),
        "swapcase" => text.chars().map(swap_case).collect::<String>().into(),
        "casefold" => Value::from(text.to_lowercase()),
        "isdecimal" => Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())),
        "ljust" => pad(text, args, |missing| (0, missing))?,
        "rjust" => pad(text, args, |missing| (missing, 0))?,
        _ => return Ok(None),
    }))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn triple(before: &str, separator: &str, after: &str) -> Value {
    Value::from(Tuple::from([before, separator, after].map(Value::from)))
}

/// Python also strips the separators U+001C to U+001F, which are not whitespace in Rust.
fn strip<'a>(text: &'a str, args: &[Value], start: bool, end: bool) -> Result<&'a str, Error> {
    let (characters,): (Option<&str>,) = from_args(args)?;
    let strips = |c: char| match characters {
        Some(set) => set.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let text = if start { text.trim_start_matches(strips) } else { text };
    Ok(if end { text.trim_end_matches(strips) } else { text })
}

/// `sep=None, maxsplit=-1`, by position or by name.
fn split_arguments(args: &[Value]) -> Result<(Option<String>, i64), Error> {
    let (separator, limit, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?);
    let limit = limit.or(kwargs.get("maxsplit")?);
    kwargs.assert_all_used()?;
    Ok((separator, limit.unwrap_or(-1)))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit) = split_arguments(args)?;
    let count = usize::try_from(limit).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut parts: Vec<&str> = match separator.as_deref() {
        Some("") => return Err(invalid("rsplit: empty separator".into())),
        Some(separator) => text.rsplitn(count, separator).collect(),
        None => rsplit_whitespace(text, count),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The last words, then the rest, from right to left.
fn rsplit_whitespace(text: &str, count: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while parts.len() + 1 < count {
        let Some((before, word)) = rest.rsplit_once(char::is_whitespace) else { break };
        parts.push(word);
        rest = before.trim_end();
    }
    parts.extend((!rest.is_empty()).then_some(rest));
    parts
}

/// Index of a substring in characters, searched from an optional start.
fn find(text: &str, args: &[Value]) -> Result<Option<usize>, Error> {
    let (wanted, start): (&str, Option<usize>) = from_args(args)?;
    let start = start.unwrap_or(0);
    let offset = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(start);
    let Some(offset) = offset else { return Ok(None) };
    Ok(text[offset..].find(wanted).map(|at| start + text[offset..offset + at].chars().count()))
}

/// Capitalizes every letter that follows a non-letter, as in `They'Re`.
fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut titled = String::new();
    for c in text.chars() {
        if after_letter {
            titled.extend(c.to_lowercase())
        } else {
            titled.extend(c.to_uppercase())
        }
        after_letter = c.is_alphabetic();
    }
    titled
}

fn swap_case(c: char) -> String {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

fn pad(text: &str, args: &[Value], sides: fn(usize) -> (usize, usize)) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    if width > MAX_WIDTH {
        return Err(invalid(format!("a width of {width} is too large")));
    }
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(invalid("the fill character must be exactly one character long".into()));
    }
    let (left, right) = sides(width.saturating_sub(text.chars().count()));
    Ok(Value::from([&fill.repeat(left), text, &fill.repeat(right)].concat()))
}

fn collection_method(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match (value.kind(), name) {
        (ValueKind::Seq | ValueKind::Map, "copy") => Some(value.clone()),
        (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = from_args(args)?;
            let position = value.try_iter()?.position(|item| item == *wanted);
            Some(Value::from(position.ok_or_else(|| invalid(format!("{wanted} is not in list")))?))
        }
        _ => None,
    })
}
