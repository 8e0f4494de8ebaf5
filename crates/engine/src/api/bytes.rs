//! Sizes in bytes, for messages.

const MEGABYTE: f64 = 1e6;

/// `12.3 MB`.
pub(crate) fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / MEGABYTE)
}
