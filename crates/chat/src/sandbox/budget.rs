//! What one rendering may use: memory, work, nesting of values, output. Counts; knows no operator.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use jiff::civil::DateTime;
use minijinja::value::ObjectRepr;
use minijinja::{Error, ErrorKind, Value};

/// The longest prompt a template may write, and the longest string it may make, in bytes.
pub(crate) const MAX_TEXT: usize = 64 << 20;
/// The widest that padding may make a string.
pub(crate) const MAX_WIDTH: usize = 1 << 16;
/// Python's default recursion limit lets `json.dumps` go about this deep.
pub(crate) const MAX_DEPTH: usize = 900;
/// What a value costs in a list, and in a map beside its key.
const ITEM: u64 = 24;
const ENTRY: u64 = 128;
/// What looking at one value inside another costs, beside the bytes of a text: as long as comparing so many bytes.
const NODE: u64 = 1 << 10;

/// How much a rendering may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    /// Steps of the interpreter.
    pub fuel: u64,
    /// Bytes of all values made, also of those given up again.
    pub memory: u64,
    /// Bytes looked at.
    work: u64,
    /// Lists, maps and namespaces made: no value is nested deeper than that.
    nesting: u64,
}

impl Allowance {
    /// For a conversation of so many messages of so many bytes in all.
    ///
    /// Several published templates look through all messages at every message, or append each to what came before, so the
    /// limits grow with the square, up to an end. Twenty million steps take about a second.
    pub fn new(messages: usize, bytes: usize) -> Allowance {
        let (messages, bytes) = (messages as u64, bytes as u64);
        let fuel = messages.saturating_mul(messages).saturating_mul(64).saturating_add(20_000_000);
        let memory = bytes.saturating_mul(messages.saturating_add(32)).saturating_add(256 << 20);
        let memory = memory.min(4 << 30);
        let nesting = messages.saturating_mul(200).saturating_add(100_000).min(500_000);
        let fuel = fuel.min(400_000_000);
        Allowance { fuel, memory, work: 8 * memory + 64 * fuel, nesting }
    }
}

/// What a template ran out of.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Exhausted(pub &'static str);

fn exhausted(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what).with_source(Exhausted(what))
}

/// What is left, and what must be known to tidy up. One rendering at a time uses it.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    memory: AtomicU64,
    work: AtomicU64,
    nesting: AtomicU64,
    output: AtomicU64,
    now: Mutex<Option<DateTime>>,
    namespaces: Mutex<Vec<Value>>,
}

impl Budget {
    pub fn reset(&self, allowance: Allowance, now: Option<DateTime>) {
        self.memory.store(allowance.memory, Relaxed);
        self.work.store(allowance.work, Relaxed);
        self.nesting.store(allowance.nesting, Relaxed);
        // Text that is captured is written more than once.
        self.output.store(4 * MAX_TEXT as u64, Relaxed);
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// The time that templates see.
    pub fn now(&self) -> DateTime {
        let fixed = *self.now.lock().unwrap_or_else(PoisonError::into_inner);
        fixed.unwrap_or_else(|| jiff::Zoned::now().datetime())
    }

    pub fn memory(&self, bytes: u64) -> Result<(), Error> {
        take(&self.memory, bytes, "it makes too many or too large values")
    }

    pub fn work(&self, bytes: u64) -> Result<(), Error> {
        take(&self.work, bytes, "it looks at its values too often")
    }

    pub fn output(&self, bytes: usize) -> Result<(), Error> {
        take(&self.output, bytes as u64, OUTPUT)
    }

    /// Before a string of this many bytes is made.
    pub fn string(&self, bytes: usize) -> Result<(), Error> {
        if bytes > MAX_TEXT {
            return Err(exhausted("it makes a string that is too long"));
        }
        self.memory(bytes as u64 + ITEM)
    }

    /// Before a list of this many items is made.
    pub fn list(&self, items: usize) -> Result<(), Error> {
        take(&self.nesting, 1, "it nests its values too deeply")?;
        self.memory(items as u64 * ITEM + ENTRY)
    }

    /// Before as many lists, maps or pairs as that are made, none inside another.
    pub fn entries(&self, entries: usize) -> Result<(), Error> {
        take(&self.nesting, 1, "it nests its values too deeply")?;
        self.memory((entries as u64 + 1) * ENTRY)
    }

    /// Before a value is written as text: quotes and escapes may make it eight times as long as it is.
    pub fn display(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.string(text.len()),
            None if value.as_object().is_some() => {
                let bytes = self.measure(value)?.saturating_mul(8);
                self.string(usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            None => self.string(48),
        }
    }

    /// The bytes of a value with all that it holds, each time that it holds it. Must come before whatever looks into a value:
    /// such a value can be far larger than the memory it takes, can be deep, and a namespace can hold itself.
    pub fn measure(&self, value: &Value) -> Result<u64, Error> {
        self.measure_at(value, 0)
    }

    fn measure_at(&self, value: &Value, depth: usize) -> Result<u64, Error> {
        self.work(NODE)?;
        if let Some(text) = value.as_str() {
            return Ok(text.len() as u64 + 16);
        }
        let Some(object) = value.as_object() else { return Ok(48) };
        if depth > MAX_DEPTH {
            return Err(exhausted("it nests its values too deeply"));
        }
        let mut bytes = 64;
        match object.repr() {
            ObjectRepr::Map => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    bytes += self.measure_at(&key, depth + 1)?;
                    bytes += self.measure_at(&value, depth + 1)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    bytes += self.measure_at(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(bytes)
    }

    /// Before something is done with a value as it is: a string is looked at, a list or map is gone through.
    pub fn touch(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.work(text.len() as u64),
            None if value.as_object().is_some() => self.work(16 * value.len().unwrap_or(0) as u64),
            None => Ok(()),
        }
    }

    /// Before a value's parts are looked at.
    pub fn look_into(&self, value: &Value) -> Result<(), Error> {
        if value.as_object().is_some() { self.measure(value).map(drop) } else { self.touch(value) }
    }

    /// Collects items that an iterator makes, counting them as they come.
    pub fn collect(&self, value: &Value, into: &mut Vec<Value>) -> Result<(), Error> {
        for item in value.try_iter()?.checked() {
            self.memory(ITEM)?;
            into.push(item?);
        }
        Ok(())
    }

    /// A value that was just made, counted. Lists that are computed anew whenever they are read become plain lists: built on
    /// each other they would be read one inside the other.
    pub fn own(&self, value: Value) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            self.string(text.len())?;
            return Ok(value);
        }
        let Some(object) = value.as_object() else { return Ok(value) };
        match object.repr() {
            ObjectRepr::Iterable => {
                self.list(0)?;
                let mut items = Vec::new();
                self.collect(&value, &mut items)?;
                return Ok(Value::from(items));
            }
            ObjectRepr::Seq => self.list(value.len().unwrap_or(0))?,
            ObjectRepr::Map => self.entries(value.len().unwrap_or(0))?,
            _ => {}
        }
        Ok(value)
    }

    /// Remembers a namespace until the end of the rendering: it may come to hold itself, and would then never be freed.
    pub fn remember(&self, namespace: &Value) {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).push(namespace.clone());
    }

    pub fn take_namespaces(&self) -> Vec<Value> {
        std::mem::take(&mut *self.namespaces.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a template that writes without end is told.
pub(crate) const OUTPUT: &str = "it writes too much";

fn take(left: &AtomicU64, amount: u64, what: &'static str) -> Result<(), Error> {
    let rest = left.load(Relaxed).checked_sub(amount).ok_or_else(|| exhausted(what))?;
    left.store(rest, Relaxed);
    Ok(())
}
