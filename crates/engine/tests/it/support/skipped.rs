//! Tests that lack what they need.

use std::io::Write;

/// Says that the running test leaves something out, and why, so that it shows even though the test
/// passes: a test's own output is hidden then, what is written to stderr itself is not.
pub fn skipped(what: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    // A stderr that is closed is no reason to fail.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {what}");
}
