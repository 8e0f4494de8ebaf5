//! Charges the budget for filters and methods before they are called.

use minijinja::{Error, ErrorKind, Value};

use super::budget::{Budget, MAX_TEXT, MAX_WIDTH};

/// Charges for a filter call; the first argument is the value.
pub(crate) fn filter(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(|value| budget.touch(value))?;
    let (Some(value), rest) = (args.first(), args.get(1..).unwrap_or_default()) else { return Ok(()) };
    match name {
        // Escaping turns a character into six; other filters into at most three.
        "safe" | "escape" | "e" | "lower" | "upper" | "title" | "capitalize" | "string" | "lines" => {
            printed(budget, value)?;
            budget.memory(6 * text_length(value))?;
            parts(budget, value, "\n")
        }
        "trim" => {
            printed(budget, value)?;
            strip(budget, value, rest)
        }
        "int" | "float" | "bool" | "abs" | "round" | "length" | "count" | "first" | "last" => Ok(()),
        "attr" => args.iter().try_for_each(|value| budget.look_into(value)),
        "replace" => {
            args.iter().try_for_each(|value| printed(budget, value))?;
            replace(budget, value, rest)
        }
        "split" => split(budget, value, rest),
        "join" => {
            args.iter().try_for_each(|value| printed(budget, value))?;
            join(budget, rest.first(), value)
        }
        "indent" => indent(budget, value, rest),
        "format" => format(budget, value, rest),
        "batch" | "slice" => {
            let count = rest.first().and_then(Value::as_usize).unwrap_or(0);
            if count > MAX_WIDTH {
                return Err(invalid(format!("{name}: a count of {count} is too large")));
            }
            budget.memory(24 * count as u64)?;
            items(budget, value)
        }
        "pprint" => {
            // Indented by four per level.
            let bytes = budget.measure(value)?.saturating_mul(256);
            budget.string(usize::try_from(bytes).unwrap_or(usize::MAX))
        }
        "sum" => {
            // Every addition copies all previous items.
            let bytes = budget.measure(value)?;
            budget.memory(bytes.saturating_mul(value.len().unwrap_or(0) as u64))
        }
        "dictsort" | "min" | "max" | "sort" | "groupby" | "unique" => {
            let bytes = budget.measure(value)?;
            let rounds = u64::from(value.len().unwrap_or(0).checked_ilog2().unwrap_or(0)) + 1;
            budget.work(bytes.saturating_mul(rounds))?;
            items(budget, value)
        }
        _ => args.iter().try_for_each(|value| items(budget, value)),
    }
}

/// Charges for a call of a Python method.
pub(crate) fn method(budget: &Budget, value: &Value, name: &str, args: &[Value]) -> Result<(), Error> {
    budget.touch(value)?;
    args.iter().try_for_each(|value| budget.touch(value))?;
    if value.as_str().is_none() {
        args.iter().try_for_each(|value| budget.look_into(value))?;
        return match name {
            "count" | "index" => budget.measure(value).map(drop),
            "items" | "keys" | "values" => items(budget, value),
            _ => Ok(()),
        };
    }
    match name {
        "strip" | "lstrip" | "rstrip" => strip(budget, value, args),
        "replace" => replace(budget, value, args),
        "split" | "rsplit" => split(budget, value, args),
        "splitlines" => parts(budget, value, "\n"),
        "format" => format(budget, value, args),
        "join" => {
            args.iter().try_for_each(|value| printed(budget, value))?;
            args.first().map_or(Ok(()), |items| join(budget, Some(value), items))
        }
        "startswith" | "endswith" => args.iter().try_for_each(|value| budget.look_into(value)),
        _ => budget.memory(3 * text_length(value)),
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn text_length(value: &Value) -> u64 {
    value.as_str().map_or(0, str::len) as u64
}

/// Charges for a value used as text; anything but a string is printed.
fn printed(budget: &Budget, value: &Value) -> Result<(), Error> {
    if value.as_str().is_some() { Ok(()) } else { budget.display(value) }
}

/// Charges for a list of a value's items; those of a string are its characters.
fn items(budget: &Budget, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => budget.list(text.len()),
        None => budget.entries(value.len().unwrap_or(0)),
    }
}

/// Charges for splitting a text.
fn parts(budget: &Budget, value: &Value, separator: &str) -> Result<(), Error> {
    let text = value.as_str().unwrap_or_default();
    let splits = if separator.is_empty() { text.len() } else { text.matches(separator).count() };
    budget.memory(text.len() as u64)?;
    budget.list(splits + 1)
}

fn split(budget: &Budget, value: &Value, args: &[Value]) -> Result<(), Error> {
    printed(budget, value)?;
    match args.iter().find_map(Value::as_str) {
        Some(separator) => parts(budget, value, separator),
        // By whitespace, or by a keyword argument that is not resolved here.
        None => {
            let text = value.as_str().unwrap_or_default();
            budget.memory(text.len() as u64)?;
            budget.list(text.split_whitespace().count() + 1)?;
            args.iter().filter(|value| value.is_kwargs()).try_for_each(|_| budget.list(text.len()))
        }
    }
}

/// Every stripped character is searched for in the set.
fn strip(budget: &Budget, value: &Value, args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(|value| printed(budget, value))?;
    let set = args.iter().map(text_length).max().unwrap_or(1);
    budget.work(text_length(value).saturating_mul(set))
}

fn replace(budget: &Budget, value: &Value, args: &[Value]) -> Result<(), Error> {
    let text = value.as_str().unwrap_or_default();
    let (Some(old), Some(new)) = (args.first().and_then(Value::as_str), args.get(1).and_then(Value::as_str))
    else {
        // Another type, or an error.
        let longest = args.iter().map(text_length).max().unwrap_or(0).max(48);
        return budget.string((text.len() + 1).saturating_mul(longest as usize));
    };
    let matches = if old.is_empty() { text.len() + 1 } else { text.matches(old).count() };
    budget.string(text.len().saturating_add(matches.saturating_mul(new.len())))
}

fn join(budget: &Budget, separator: Option<&Value>, list: &Value) -> Result<(), Error> {
    let separator = separator.map_or(0, |value| value.as_str().map_or(64, str::len));
    items(budget, list)?;
    let between = list.len().unwrap_or(0).saturating_mul(separator);
    let bytes = usize::try_from(budget.measure(list)?).unwrap_or(usize::MAX);
    // Items of other types are printed, with escapes.
    let texts = list.as_str().is_some()
        || list.try_iter().is_ok_and(|mut items| items.all(|item| item.as_str().is_some()));
    budget.string(bytes.saturating_mul(if texts { 1 } else { 8 }).saturating_add(between))
}

fn indent(budget: &Budget, value: &Value, args: &[Value]) -> Result<(), Error> {
    printed(budget, value)?;
    let widths = args.iter().filter_map(|arg| match arg.as_object() {
        Some(_) => arg.get_attr("width").ok()?.as_usize(),
        None => arg.as_usize(),
    });
    let width = widths.max().unwrap_or(4).max(4);
    if width > MAX_WIDTH {
        return Err(invalid(format!("indent: a width of {width} is too large")));
    }
    let text = value.as_str().unwrap_or_default();
    let lines = text.matches('\n').count() + 1;
    budget.string(text.len().saturating_add(lines.saturating_mul(width)))
}

/// Charges for either kind of format: any number in it may be a width, and any directive may take
/// the largest argument.
fn format(budget: &Budget, value: &Value, args: &[Value]) -> Result<(), Error> {
    printed(budget, value)?;
    let format = value.as_str().unwrap_or_default();
    let mut widths: usize = 0;
    for number in format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        let width = number.parse::<usize>().ok().filter(|width| *width <= MAX_WIDTH);
        widths += width.ok_or_else(|| invalid(format!("format: a width of {number:.20} is too large")))?;
    }
    let directives = format.matches(['%', '{']).count();
    let from_arguments = format.contains('*') || format.contains(":{") || format.matches('{').count() > 1;
    let mut largest = 0;
    for arg in args {
        largest = budget.measure(arg)?.saturating_mul(8).max(largest);
        if from_arguments {
            widths = widths.saturating_add(argument_widths(arg)?.saturating_mul(directives));
        }
    }
    let filled = directives.saturating_mul(usize::try_from(largest).unwrap_or(usize::MAX));
    let bytes = format.len().saturating_add(widths.saturating_mul(4)).saturating_add(filled);
    budget.string(bytes.min(MAX_TEXT + 1))
}

/// Sum of the numbers in an argument, which may be widths.
fn argument_widths(arg: &Value) -> Result<usize, Error> {
    let numbers: Vec<Value> = match arg.as_object() {
        Some(object) => object.try_iter_pairs().into_iter().flatten().map(|(_, value)| value).collect(),
        None => vec![arg.clone()],
    };
    let mut sum = 0usize;
    for width in numbers.iter().filter(|value| value.is_number()) {
        let size = width.as_i64().map_or(0, i64::unsigned_abs);
        if size > MAX_WIDTH as u64 {
            return Err(invalid(format!("format: {width} could be a width, and is too large for one")));
        }
        sum += size as usize;
    }
    Ok(sum)
}
