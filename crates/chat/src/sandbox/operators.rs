//! Jinja's operators as filters that charge the budget. `compile` maps operators to them.

use std::fmt::Write;
use std::sync::Arc;

use minijinja::value::{Kwargs, ObjectRepr, Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, tests};

use super::budget::Budget;

// Names that no template can spell.
pub(crate) const ADD: &str = "\0add";
pub(crate) const MUL: &str = "\0mul";
pub(crate) const CONCAT: &str = "\0concat";
pub(crate) const EQ: &str = "\0eq";
pub(crate) const NE: &str = "\0ne";
pub(crate) const LT: &str = "\0lt";
pub(crate) const LE: &str = "\0le";
pub(crate) const GT: &str = "\0gt";
pub(crate) const GE: &str = "\0ge";
pub(crate) const IN: &str = "\0in";
pub(crate) const ITEM: &str = "\0item";
pub(crate) const SLICE: &str = "\0slice";
pub(crate) const MAP: &str = "\0map";
pub(crate) const KWARGS: &str = "\0kwargs";
pub(crate) const CHAIN: &str = "\0chain";
pub(crate) const OWN: &str = "\0own";
pub(crate) const TOUCH: &str = "\0touch";
pub(crate) const LOOK: &str = "\0look";

/// Registers the operators as filters.
pub(crate) fn register(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    let mut binary = |name: &'static str, operator: fn(&Budget, &Value, &Value) -> Result<Value, Error>| {
        let budget = budget.clone();
        environment.add_filter(name, move |a: &Value, b: &Value| operator(&budget, a, b));
    };
    binary(ADD, add);
    binary(MUL, mul);
    binary(CONCAT, concat);
    binary(EQ, |budget, a, b| compare(budget, a, b, |a, b| a == b));
    binary(NE, |budget, a, b| compare(budget, a, b, |a, b| a != b));
    binary(LT, |budget, a, b| compare(budget, a, b, |a, b| a < b));
    binary(LE, |budget, a, b| compare(budget, a, b, |a, b| a <= b));
    binary(GT, |budget, a, b| compare(budget, a, b, |a, b| a > b));
    binary(GE, |budget, a, b| compare(budget, a, b, |a, b| a >= b));
    binary(ITEM, item);
    let mut unary = |name: &'static str, operator: fn(&Budget, Value) -> Result<Value, Error>| {
        let budget = budget.clone();
        environment.add_filter(name, move |value: &Value| operator(&budget, value.clone()));
    };
    unary(OWN, Budget::own);
    unary(TOUCH, |budget, value| budget.touch(&value).map(|()| value));
    unary(LOOK, |budget, value| budget.look_into(&value).map(|()| value));
    let mut variadic = |name: &'static str, operator: fn(&Budget, &[Value]) -> Result<Value, Error>| {
        let budget = budget.clone();
        environment.add_filter(name, move |values: Rest<Value>| operator(&budget, &values));
    };
    variadic(SLICE, slice);
    variadic(MAP, map);
    variadic(KWARGS, kwargs);
    variadic(CHAIN, chain);
    let counted = budget.clone();
    environment.add_filter(IN, move |state: &State, value: &Value, container: &Value| {
        may_contain(&counted, value, container)?;
        // The operator fails where the test is false.
        if matches!(container.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number) {
            let message = format!("a {} contains nothing", container.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        tests::is_in(state, value, container)
    });
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    let message =
        format!("tried to use {operator} operator on unsupported types {} and {}", a.kind(), b.kind());
    Error::new(ErrorKind::InvalidOperation, message)
}

enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

/// Operands converted as in Python: `True` is 1, and one float makes both floats.
fn numbers(a: &Value, b: &Value) -> Option<Numbers> {
    let is_float = |value: &Value| value.is_number() && !value.is_integer();
    let integer = |value: &Value| i128::try_from(value.clone()).ok();
    if !is_float(a) && !is_float(b) {
        return Some(Numbers::Integers(integer(a)?, integer(b)?));
    }
    let float = |value: &Value| match is_float(value) {
        true => f64::try_from(value.clone()).ok(),
        false => integer(value).map(|n| n as f64),
    };
    Some(Numbers::Floats(float(a)?, float(b)?))
}

fn integer(value: Option<i128>, operator: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    let too_large =
        || Error::new(ErrorKind::InvalidOperation, format!("unable to calculate {a} {operator} {b}"));
    let value = value.ok_or_else(too_large)?;
    Ok(i64::try_from(value).map_or_else(|_| Value::from(value), Value::from))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        budget.string(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        return joined(budget, &[a, b]);
    }
    match numbers(a, b) {
        Some(Numbers::Integers(x, y)) => integer(x.checked_add(y), "+", a, b),
        Some(Numbers::Floats(x, y)) => Ok(Value::from(x + y)),
        None => Err(unsupported("+", a, b)),
    }
}

/// Concatenates lists; a tuple if the first one is.
fn joined(budget: &Budget, lists: &[&Value]) -> Result<Value, Error> {
    budget.list(0)?;
    let mut items = Vec::new();
    lists.iter().try_for_each(|list| budget.collect(list, &mut items))?;
    let is_tuple = lists.first().is_some_and(|list| list.is_tuple());
    Ok(if is_tuple { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

fn mul(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let repeatable = |value: &Value| value.as_str().is_some() || is_list(value);
    let (repeated, times) = match (repeatable(a), repeatable(b)) {
        (true, _) => (a, b),
        (false, true) => (b, a),
        (false, false) => {
            return match numbers(a, b) {
                Some(Numbers::Integers(x, y)) => integer(x.checked_mul(y), "*", a, b),
                Some(Numbers::Floats(x, y)) => Ok(Value::from(x * y)),
                None => Err(unsupported("*", a, b)),
            };
        }
    };
    let times = times.as_usize().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("a {} can only be multiplied with integers", repeated.kind()),
        )
    })?;
    if let Some(text) = repeated.as_str() {
        budget.string(text.len().saturating_mul(times))?;
        return Ok(Value::from(text.repeat(times)));
    }
    let items = repeated.len().unwrap_or(0).saturating_mul(times);
    // An empty list may be repeated often without any item to charge for.
    budget.work(times as u64)?;
    budget.memory((items as u64).saturating_mul(24))?;
    joined(budget, &vec![repeated; if items == 0 { 1 } else { times }]).map(|list| match items {
        0 if list.is_tuple() => Value::from(Tuple::default()),
        0 => Value::from(Vec::<Value>::new()),
        _ => list,
    })
}

fn concat(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    for value in [a, b] {
        budget.display(value)?;
        let _ = write!(text, "{value}");
    }
    Ok(Value::from(text))
}

fn compare(budget: &Budget, a: &Value, b: &Value, holds: fn(&Value, &Value) -> bool) -> Result<Value, Error> {
    comparable(budget, a, b)?;
    Ok(Value::from(holds(a, b)))
}

/// Charges for comparing two values.
pub(crate) fn comparable(budget: &Budget, a: &Value, b: &Value) -> Result<(), Error> {
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => budget.work(a.len().min(b.len()) as u64),
        (None, None) if a.as_object().is_some() && b.as_object().is_some() => {
            budget.measure(a)?;
            budget.measure(b).map(drop)
        }
        _ => Ok(()),
    }
}

/// Charges for searching a value in another.
pub(crate) fn may_contain(budget: &Budget, value: &Value, container: &Value) -> Result<(), Error> {
    if let Some(text) = container.as_str() {
        budget.work(text.len() as u64)?;
        return if value.as_str().is_some() { Ok(()) } else { budget.display(value) };
    }
    match value.as_str() {
        // Every item is compared with the string.
        Some(text) => budget.work((container.len().unwrap_or(0) as u64 + 1) * (16 + text.len() as u64)),
        None if value.as_object().is_some() => {
            budget.measure(value)?;
            budget.measure(container).map(drop)
        }
        None => budget.touch(container),
    }
}

fn item(budget: &Budget, container: &Value, key: &Value) -> Result<Value, Error> {
    if container.as_str().is_some() {
        budget.touch(container)?;
    }
    if key.as_object().is_some() {
        budget.measure(key)?;
    }
    container.get_item(key)
}

/// `value[start:stop:step]`.
fn slice(budget: &Budget, args: &[Value]) -> Result<Value, Error> {
    let [value, start, stop, step] = args else {
        return Err(Error::new(ErrorKind::InvalidOperation, "a slice has a start, a stop and a step"));
    };
    let number =
        |value: &Value| if value.is_none() { Ok(None) } else { i64::try_from(value.clone()).map(Some) };
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "cannot slice by step size of 0"));
    }
    budget.touch(value)?;
    if let Some(text) = value.as_str() {
        budget.string(text.len())?;
        let characters = text.chars().count();
        if step > 0 {
            let (from, to) = bounds(start, stop, step, characters);
            let taken = text.chars().skip(from as usize).take((to - from).max(0) as usize);
            return Ok(Value::from(
                taken.step_by(usize::try_from(step).unwrap_or(usize::MAX)).collect::<String>(),
            ));
        }
        budget.memory(4 * characters as u64)?;
        let all: Vec<char> = text.chars().collect();
        return Ok(Value::from(indices(start, stop, step, all.len()).map(|at| all[at]).collect::<String>()));
    }
    if value.is_undefined() || value.is_none() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_list(value) {
        let message = format!("value of type {} cannot be sliced", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    budget.list(0)?;
    let mut all = Vec::new();
    budget.collect(value, &mut all)?;
    let items: Vec<Value> = indices(start, stop, step, all.len()).map(|at| all[at].clone()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// First index and exclusive end, as in Python's `slice.indices`.
fn bounds(start: Option<i64>, stop: Option<i64>, step: i64, length: usize) -> (i64, i64) {
    let length = length as i64;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |at: i64| if at < 0 { at.saturating_add(length).max(low) } else { at.min(high) };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    (start.map_or(first, clamp), stop.map_or(last, clamp))
}

fn indices(start: Option<i64>, stop: Option<i64>, step: i64, length: usize) -> impl Iterator<Item = usize> {
    let (from, to) = bounds(start, stop, step, length);
    let inside = move |at: &i64| if step > 0 { *at < to } else { *at > to };
    let next = move |at: &i64| at.checked_add(step).filter(inside);
    std::iter::successors(Some(from).filter(inside), next).map(|at| at as usize)
}

/// `{key: value, ..}` from alternating keys and values.
fn map(budget: &Budget, pairs: &[Value]) -> Result<Value, Error> {
    budget.entries(pairs.len() / 2)?;
    for pair in pairs.chunks_exact(2) {
        budget.look_into(&pair[0])?;
    }
    Ok(Value::from_pairs(pairs.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()))))
}

/// `**a, **b` in a call.
fn kwargs(budget: &Budget, maps: &[Value]) -> Result<Value, Error> {
    let mut merged: Vec<(String, Value)> = Vec::new();
    for map in maps {
        let object = map.as_object().filter(|object| object.repr() == ObjectRepr::Map);
        let pairs = object.and_then(|object| object.try_iter_pairs()).ok_or_else(|| {
            let message = format!("attempted to apply keyword arguments from non map (got {})", map.kind());
            Error::new(ErrorKind::InvalidOperation, message)
        })?;
        for (key, value) in pairs {
            budget.display(&key)?;
            budget.entries(0)?;
            merged.push((key.to_string(), value));
        }
    }
    Ok(Value::from(merged.into_iter().collect::<Kwargs>()))
}

/// `*a, *b` in a call or a list.
fn chain(budget: &Budget, lists: &[Value]) -> Result<Value, Error> {
    budget.list(0)?;
    let mut items = Vec::new();
    for list in lists {
        budget.collect(list, &mut items)?;
    }
    Ok(Value::from(items))
}
