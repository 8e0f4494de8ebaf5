//! Reports skipped parts of tests.

use std::io::Write;

/// Reports that the running test skips something. The harness hides output of macros in passing
/// tests, but not writes to stderr itself.
pub(crate) fn skipped(what: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    // A closed stderr is not a failure.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {what}");
}
