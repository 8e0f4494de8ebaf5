//! The shape of a step, for cost measurements and metrics.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Whether all rows decode: it computes no part of a prompt.
    pub decodes: bool,
    pub rows: usize,
    /// Tokens of all rows.
    pub width: usize,
    /// Whether any of them are drafted.
    pub drafted: bool,
    /// Whether any row skips layers.
    pub lossy: bool,
}
