//! How far a sequence's tokens are computed and read back.

use std::rc::Rc;

use mlx::Array;

/// A sampled token that may not be read back yet.
#[derive(Clone)]
pub(crate) struct PendingToken {
    /// Uint32 `[n]`, of all rows of a step.
    pub tokens: Rc<Array>,
    pub index: i32,
}

#[derive(Default)]
pub(crate) struct Progress {
    /// Tokens whose state is in the caches, or will be once the launched steps have run.
    pub num_computed_tokens: usize,
    /// Tokens sampled and not read back.
    pub num_unread: usize,
    /// The token sampled last, which the next step computes.
    pub pending: Option<PendingToken>,
}
