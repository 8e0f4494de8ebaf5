//! Python's `strftime` for chat templates, in the C locale and without time zones.

use jiff::civil::DateTime;
use minijinja::{Error, ErrorKind};

/// Maximum bytes of a format: a directive can expand to 255 characters.
const MAX_FORMAT: usize = 1024;

/// Formats a time as `datetime.now().strftime(format)` does.
pub(crate) fn strftime(format: &str, now: DateTime) -> Result<String, Error> {
    if format.len() > MAX_FORMAT {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is too long"));
    }
    let mut posix = String::new();
    let mut characters = format.chars();
    while let Some(c) = characters.next() {
        match if c == '%' { characters.next() } else { None } {
            None => posix.push(c),
            Some('c') => posix.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => posix.push_str("%m/%d/%y"),
            Some('X') => posix.push_str("%H:%M:%S"),
            Some('f') => posix.push_str("%6f"),
            Some('Z' | 'z') => {}
            Some(directive) => posix.extend(['%', directive]),
        }
    }
    jiff::fmt::strtime::format(&posix, now)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
}
