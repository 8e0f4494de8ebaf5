//! `tojson` as in transformers: Python's `json.dumps` with `ensure_ascii=False` and no HTML
//! escaping.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::sandbox::budget::{Budget, MAX_DEPTH, MAX_TEXT};

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn tojson(
    budget: &Budget,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = args.get(index).cloned().or(kwargs.get::<Option<Value>>(name)?);
        Ok(value.filter(|v| !v.is_none()))
    };
    let indent = argument(1, "indent")?.map(|v| indent_text(&v)).transpose()?;
    let separators = argument(2, "separators")?.map(|v| separators(&v)).transpose()?;
    let item = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or((item.to_owned(), ": ".to_owned()));
    let mut dump = Dump {
        out: String::new(),
        ensure_ascii: argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true()),
        sort_keys: argument(3, "sort_keys")?.is_some_and(|v| v.is_true()),
        indent,
        item,
        key,
    };
    kwargs.assert_all_used()?;
    budget.display(value)?;
    dump.value(value, 0)?;
    if dump.out.len() > MAX_TEXT {
        return Err(invalid("tojson: the text is too long"));
    }
    Ok(Value::from(dump.out))
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    match (indent.as_str(), indent.as_i64()) {
        (Some(text), _) if text.len() <= 64 => Ok(text.to_owned()),
        (None, Some(spaces)) if spaces <= 64 => Ok(" ".repeat(spaces.max(0) as usize)),
        _ => Err(invalid("tojson: indent must be a short string or a small number")),
    }
}

fn separators(pair: &Value) -> Result<(String, String), Error> {
    let text = |index| {
        let text = pair.get_item_by_index(index)?;
        let short = text.as_str().filter(|text| text.len() <= 64);
        short.map(str::to_owned).ok_or_else(|| invalid("tojson: separators must be two short strings"))
    };
    Ok((text(0)?, text(1)?))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

struct Dump {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl Dump {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(invalid(format!("tojson: a value of type {kind} is not JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(float) if !value.is_integer() => self.out.push_str(&float_repr(float)),
            _ => self.out.push_str(&value.to_string()),
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.before_item(std::mem::take(&mut empty), depth);
            self.value(&item?, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let empty = keys.is_empty();
        for (index, key) in keys.iter().enumerate() {
            self.before_item(index == 0, depth);
            match key.kind() {
                ValueKind::String => self.value(key, depth)?,
                _ => {
                    self.out.push('"');
                    self.value(key, depth)?;
                    self.out.push('"');
                }
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn before_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.item);
        }
        self.new_line(depth + 1);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        let Some(indent) = &self.indent else { return };
        // Indentation can outgrow the text; the caller rejects a text that is too long.
        if self.out.len() > MAX_TEXT {
            return;
        }
        self.out.push('\n');
        (0..depth).for_each(|_| self.out.push_str(indent));
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                ' '..='~' => self.out.push(c),
                c if c >= ' ' && !self.ensure_ascii => self.out.push(c),
                c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                    let _ = write!(self.out, "\\u{unit:04x}");
                }),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python prints it: shortest digits that round-trip, with an exponent from 1e16 and
/// below 1e-4; `NaN` and infinities as in `json.dumps`.
pub(crate) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..=15 => format!("{value:?}"),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}
