//! Jinja2's filters and tests where minijinja's differ.

use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, tests};

use crate::sandbox::budget::Budget;
use crate::sandbox::{costs, operators};

/// Registers Jinja2's filters and tests where minijinja lacks them or differs, and charges all of
/// them to `budget`.
pub(crate) fn register(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    let counted = budget.clone();
    environment.add_filter("tojson", move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        crate::json::tojson(&counted, value, args, kwargs)
    });
    for (name, filter) in counted_filters() {
        let counted = budget.clone();
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            costs::filter(&counted, name, &args)?;
            counted.own(filter.call(state, &args)?)
        });
    }
    for (name, test) in counted_tests() {
        let counted = budget.clone();
        environment.add_test(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            if let [a, b] = &args[..] {
                operators::comparable(&counted, a, b)?;
                operators::may_contain(&counted, a, b)?;
            }
            args.iter().try_for_each(|value| counted.look_into(value))?;
            test.call(state, &args)
        });
    }
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_test("iterable", is_iterable);
    // Slices of lists are sequences in Python, but lazy in minijinja.
    environment.add_test("sequence", is_iterable);
}

/// Filters whose cost depends on their arguments.
fn counted_filters() -> Vec<(&'static str, Value)> {
    vec![
        ("safe", Value::from_function(filters::safe)),
        ("escape", Value::from_function(filters::escape)),
        ("e", Value::from_function(filters::escape)),
        ("lower", Value::from_function(filters::lower)),
        ("upper", Value::from_function(filters::upper)),
        ("title", Value::from_function(filters::title)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("replace", Value::from_function(replace)),
        ("length", Value::from_function(length)),
        ("count", Value::from_function(length)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("items", Value::from_function(filters::items)),
        ("reverse", Value::from_function(filters::reverse)),
        ("trim", Value::from_function(filters::trim)),
        ("join", Value::from_function(filters::join)),
        ("split", Value::from_function(filters::split)),
        ("lines", Value::from_function(filters::lines)),
        ("round", Value::from_function(filters::round)),
        ("abs", Value::from_function(filters::abs)),
        ("int", Value::from_function(int)),
        ("float", Value::from_function(float)),
        ("attr", Value::from_function(filters::attr)),
        ("first", Value::from_function(filters::first)),
        ("last", Value::from_function(filters::last)),
        ("min", Value::from_function(filters::min)),
        ("max", Value::from_function(filters::max)),
        ("sort", Value::from_function(filters::sort)),
        ("list", Value::from_function(filters::list)),
        ("string", Value::from_function(filters::string)),
        ("bool", Value::from_function(filters::bool)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
        ("sum", Value::from_function(filters::sum)),
        ("indent", Value::from_function(filters::indent)),
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("map", Value::from_function(filters::map)),
        ("groupby", Value::from_function(filters::groupby)),
        ("unique", Value::from_function(filters::unique)),
        ("chain", Value::from_function(filters::chain)),
        ("zip", Value::from_function(filters::zip)),
        ("pprint", Value::from_function(filters::pprint)),
        ("format", Value::from_function(filters::format)),
    ]
}

/// Tests whose cost depends on their arguments.
fn counted_tests() -> Vec<(&'static str, Value)> {
    let named = |names: &[&'static str], test: Value| {
        names.iter().map(|name| (*name, test.clone())).collect::<Vec<_>>()
    };
    [
        named(&["eq", "equalto", "=="], Value::from_function(tests::is_eq)),
        named(&["ne", "!="], Value::from_function(tests::is_ne)),
        named(&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        named(&["le", "<="], Value::from_function(tests::is_le)),
        named(&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        named(&["ge", ">="], Value::from_function(tests::is_ge)),
        named(&["in"], Value::from_function(tests::is_in)),
        named(&["sameas"], Value::from_function(tests::is_sameas)),
        named(&["startingwith"], Value::from_function(tests::is_startingwith)),
        named(&["endingwith"], Value::from_function(tests::is_endingwith)),
        named(&["lower"], Value::from_function(tests::is_lower)),
        named(&["upper"], Value::from_function(tests::is_upper)),
    ]
    .concat()
}

/// Like Jinja2, treats undefined values as iterable, but not `None`.
fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// `default(value, default_value="", boolean=False)`; minijinja has no keyword arguments.
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

/// Text that is not a number yields the default, 0.
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

/// Text that is not a number yields the default, 0.0.
fn float(state: &State, value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0.0));
    filters::float(state, &trimmed(value), Some(default), kwargs)
}

/// Python parses numbers with surrounding whitespace.
fn trimmed(value: &Value) -> Value {
    value.as_str().map_or_else(|| value.clone(), |text| Value::from(text.trim()))
}

/// The length of an undefined value is 0.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// `replace(s, old, new, count=None)`; minijinja has no count.
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
    Ok(match count {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    })
}
