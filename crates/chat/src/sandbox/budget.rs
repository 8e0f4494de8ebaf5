//! Limits of one rendering: memory, work, nesting of values, output. Knows nothing of operators.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::civil::DateTime;
use minijinja::value::ObjectRepr;
use minijinja::{Error, ErrorKind, Value};

use super::memory::{Refused, RenderShare};

/// Maximum bytes of a prompt, and of any string.
pub(crate) const MAX_TEXT: usize = 64 << 20;
/// Maximum width to which a string can be padded.
pub(crate) const MAX_WIDTH: usize = 1 << 16;
/// Maximum nesting; about that of `json.dumps` under Python's default recursion limit.
pub(crate) const MAX_DEPTH: usize = 900;
/// Bytes charged for a value in a list, and for an entry of a map.
const ITEM: u64 = 24;
const ENTRY: u64 = 128;
/// Work charged for visiting a nested value; it takes as long as comparing this number of bytes.
const NODE: u64 = 1 << 10;

/// The limits of a rendering.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    /// Interpreter steps.
    pub fuel: u64,
    /// Bytes of all values created, including freed ones.
    pub memory: u64,
    /// Bytes read.
    work: u64,
    /// Number of lists, maps and namespaces created, which bounds the nesting of values.
    nesting: u64,
}

impl Allowance {
    /// For a conversation of `messages` messages with `bytes` bytes in total.
    ///
    /// Some published templates scan all messages for every message, or append each to the previous
    /// ones, so the limits grow quadratically up to a maximum. Twenty million steps take about a
    /// second.
    pub(crate) fn new(messages: usize, bytes: usize) -> Allowance {
        let (messages, bytes) = (messages as u64, bytes as u64);
        let fuel = messages.saturating_mul(messages).saturating_mul(64).saturating_add(20_000_000);
        let memory = bytes.saturating_mul(messages.saturating_add(32)).saturating_add(256 << 20);
        let memory = memory.min(4 << 30);
        let nesting = messages.saturating_mul(200).saturating_add(100_000).min(500_000);
        let fuel = fuel.min(400_000_000);
        Allowance { fuel, memory, work: 8 * memory + 64 * fuel, nesting }
    }
}

/// A limit that a template exceeded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Exhausted(pub &'static str);

/// Message if other renderings have the memory.
pub(crate) const IN_USE: &str = "other prompts that are being rendered take the memory";

fn exhausted(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what).with_source(Exhausted(what))
}

/// The remaining budget and the values to clean up, for one rendering at a time.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    memory: AtomicU64,
    work: AtomicU64,
    nesting: AtomicU64,
    output: AtomicU64,
    share: Mutex<Option<RenderShare>>,
    now: Mutex<Option<DateTime>>,
    namespaces: Mutex<Vec<Value>>,
}

impl Budget {
    pub(crate) fn reset(&self, allowance: Allowance, share: RenderShare, now: Option<DateTime>) {
        self.memory.store(allowance.memory, Relaxed);
        self.work.store(allowance.work, Relaxed);
        self.nesting.store(allowance.nesting, Relaxed);
        // Captured text is written more than once.
        self.output.store(4 * MAX_TEXT as u64, Relaxed);
        *lock(&self.share) = Some(share);
        *lock(&self.now) = now;
    }

    /// Returns the memory of the rendering that has ended.
    pub(crate) fn release(&self) {
        *lock(&self.share) = None;
    }

    /// The time that templates observe.
    pub(crate) fn now(&self) -> DateTime {
        let fixed = *lock(&self.now);
        fixed.unwrap_or_else(|| jiff::Zoned::now().datetime())
    }

    pub(crate) fn memory(&self, bytes: u64) -> Result<(), Error> {
        const TOO_MUCH: &str = "it makes too many or too large values";
        take(&self.memory, bytes, TOO_MUCH)?;
        let taken = lock(&self.share).as_mut().map_or(Ok(()), |share| share.take(bytes));
        taken.map_err(|refused| match refused {
            Refused::TooMuch => exhausted(TOO_MUCH),
            Refused::InUse => exhausted(IN_USE),
        })
    }

    pub(crate) fn work(&self, bytes: u64) -> Result<(), Error> {
        take(&self.work, bytes, "it looks at its values too often")
    }

    pub(crate) fn output(&self, bytes: usize) -> Result<(), Error> {
        take(&self.output, bytes as u64, OUTPUT)
    }

    /// Charges for a string of this many bytes.
    pub(crate) fn string(&self, bytes: usize) -> Result<(), Error> {
        if bytes > MAX_TEXT {
            return Err(exhausted("it makes a string that is too long"));
        }
        self.memory(bytes as u64 + ITEM)
    }

    /// Charges for a list of this many items.
    pub(crate) fn list(&self, items: usize) -> Result<(), Error> {
        take(&self.nesting, 1, "it nests its values too deeply")?;
        self.memory(items as u64 * ITEM + ENTRY)
    }

    /// Charges for this many lists, maps or pairs, none nested in another.
    pub(crate) fn entries(&self, entries: usize) -> Result<(), Error> {
        take(&self.nesting, 1, "it nests its values too deeply")?;
        self.memory((entries as u64 + 1) * ENTRY)
    }

    /// Charges for printing a value: quotes and escapes can make it eight times as long.
    pub(crate) fn display(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.string(text.len()),
            None if value.as_object().is_some() => {
                let bytes = self.measure(value)?.saturating_mul(8);
                self.string(usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            None => self.string(48),
        }
    }

    /// The bytes of a value, counting nested values as often as they occur. Must precede every
    /// operation that visits nested values: a value can be larger than its memory, deeply nested,
    /// or, for a namespace, contain itself.
    pub(crate) fn measure(&self, value: &Value) -> Result<u64, Error> {
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

    /// Charges for reading a string, or iterating over a list or map.
    pub(crate) fn touch(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.work(text.len() as u64),
            None if value.as_object().is_some() => self.work(16 * value.len().unwrap_or(0) as u64),
            None => Ok(()),
        }
    }

    /// Charges for reading nested values.
    pub(crate) fn look_into(&self, value: &Value) -> Result<(), Error> {
        if value.as_object().is_some() { self.measure(value).map(drop) } else { self.touch(value) }
    }

    /// Collects the items of an iterator, charging for each.
    pub(crate) fn collect(&self, value: &Value, into: &mut Vec<Value>) -> Result<(), Error> {
        for item in value.try_iter()?.checked() {
            self.memory(ITEM)?;
            into.push(item?);
        }
        Ok(())
    }

    /// Charges for a new value and returns it. Lazy lists become plain ones: nested lazy lists
    /// would be evaluated recursively.
    pub(crate) fn own(&self, value: Value) -> Result<Value, Error> {
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

    /// Registers a namespace for clearing after the rendering: if it contains itself, it is never
    /// freed.
    pub(crate) fn register_namespace(&self, namespace: &Value) {
        lock(&self.namespaces).push(namespace.clone());
    }

    pub(crate) fn take_namespaces(&self) -> Vec<Value> {
        std::mem::take(&mut *lock(&self.namespaces))
    }
}

/// Message for output that exceeds the limit.
pub(crate) const OUTPUT: &str = "it writes too much";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(left: &AtomicU64, amount: u64, what: &'static str) -> Result<(), Error> {
    let rest = left.load(Relaxed).checked_sub(amount).ok_or_else(|| exhausted(what))?;
    left.store(rest, Relaxed);
    Ok(())
}
