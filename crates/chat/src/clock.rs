//! Python's `strftime` for chat templates, without a time zone and in the C locale.

use jiff::civil::DateTime;
use minijinja::{Error, ErrorKind};

/// The longest format; a directive with a width of 255 is written as so many characters.
const LONGEST: usize = 1024;

/// Formats a time as `datetime.now().strftime(format)` does.
pub(crate) fn strftime(format: &str, now: DateTime) -> Result<String, Error> {
    if format.len() > LONGEST {
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
