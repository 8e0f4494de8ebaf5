//! The trait that every loaded model implements.

use mlx::Array;

use super::Mtp;
use crate::{batch::Batch, cache::Cache, nn::Embedding};

/// A loaded model. Rows of a batch never see each other.
pub trait Model {
    /// Hidden states `[tokens, hidden_size]`, after the final norm, of token ids `[tokens]` (uint32).
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array;

    /// Logits `[n, vocab_size]` of hidden states `[n, hidden_size]`.
    fn logits(&self, hidden: &Array) -> Array;

    /// Empty caches for a new sequence, one per layer that has a past of its own.
    fn make_caches(&self) -> Vec<Cache>;

    /// Tokens that it gives logits for.
    fn vocab_size(&self) -> usize;

    /// Tokens of context that it was trained on.
    fn context_length(&self) -> usize;

    /// Layers, of which a batch may [leave out](Batch::leave_out) some; 0 if this model always computes all.
    fn layers(&self) -> usize {
        0
    }

    /// The embedding of its tokens, if drafters can share it, and see what is [behind its layers](Batch::passed).
    fn embedding(&self) -> Option<&Embedding> {
        None
    }

    /// The head that predicts tokens further ahead, if the checkpoint has one.
    fn mtp(&self) -> Option<&Mtp> {
        None
    }
}
