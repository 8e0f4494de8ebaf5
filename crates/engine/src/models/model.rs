//! The trait that every loaded model implements.

use mlx::Array;
use nn::Embedding;

use super::{Mtp, Tower};
use crate::{batch::Batch, cache::Cache};

/// A loaded model. Rows of a batch do not affect each other.
pub(crate) trait Model {
    /// Token ids `[tokens]` (uint32) to hidden states `[tokens, hidden_size]` after the final norm.
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array;

    /// Logits `[n, vocab_size]` of hidden states `[n, hidden_size]`.
    fn logits(&self, hidden: &Array) -> Array;

    /// Empty caches for a new sequence, one per layer that has state of its own.
    fn make_caches(&self) -> Vec<Cache>;

    /// The vocabulary size of its logits.
    fn vocab_size(&self) -> usize;

    /// Tokens of context that it was trained on.
    fn context_length(&self) -> usize;

    /// Whether tokens see those after them, so that a prompt is computed in one step, without
    /// stored state, and none is generated: a text encoder.
    fn is_bidirectional(&self) -> bool {
        false
    }

    /// Number of layers that a batch can skip; 0 if it cannot skip any.
    fn layers(&self) -> usize {
        0
    }

    /// The token embedding, if drafters can share it and capture hidden states.
    fn embedding(&self) -> Option<&Embedding> {
        None
    }

    /// The vision tower, if the checkpoint has one that is supported.
    fn tower(&self) -> Option<&dyn Tower> {
        None
    }

    /// The multi-token prediction head, if the checkpoint has one.
    fn mtp(&self) -> Option<&Mtp> {
        None
    }
}
