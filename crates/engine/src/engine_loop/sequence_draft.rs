//! The draft of a sequence, and the constraint that its tokens must meet.

use super::sequence::Sequence;
use crate::{
    api::MAX_DEPTH,
    masks::{Masks, SequenceMasks},
};

impl Sequence {
    /// Whether it decodes and all but its last token is computed: a draft can follow.
    pub(crate) fn can_verify_draft(&self) -> bool {
        self.phase.is_running()
            && self.generated() > 0
            && self.progress.num_computed_tokens + 1 == self.tokens.len()
    }

    /// Maximum tokens of a draft: each step generates one more than it accepts.
    pub(crate) fn max_draft_tokens(&self) -> usize {
        (self.max_new_tokens - self.generated()).saturating_sub(1)
    }

    /// Passes the known tokens to the constraint; orders the masks at once if no draft can follow.
    pub(crate) fn follow_constraint(&mut self) {
        let Some(masks) = &mut self.masks else { return };
        if self.progress.num_unread > 0 {
            return;
        }
        masks.follow(&self.tokens[self.request.prompt.len()..]);
        self.draft.forced.clear();
        if self.speculation.is_off() || !self.can_verify_draft() {
            self.order_masks();
        }
    }

    /// Orders the masks of the step after the launched one; `false` if they depend on its token.
    pub(crate) fn order_masks_ahead(&mut self) -> bool {
        let generated = &self.tokens[self.request.prompt.len()..];
        self.masks.as_mut().is_none_or(|masks| masks.order_ahead(generated))
    }

    /// Waits for the tokens that the constraint forces, if a draft may follow.
    pub(crate) fn force(&mut self) {
        let depth = self.max_draft_tokens().min(MAX_DEPTH);
        if depth == 0 || self.speculation.is_off() || !self.can_verify_draft() {
            return;
        }
        if let Some(masks) = &mut self.masks {
            self.draft.forced = masks.forced(depth);
        }
    }

    /// Starts computing the tokens that may follow the known tokens and the draft.
    pub(crate) fn order_masks(&mut self) {
        if let Some(masks) = self.masks.as_mut().filter(|_| self.progress.num_unread == 0) {
            masks.order();
        }
    }

    /// Tokens that may follow the known tokens and the draft; waits for the masks.
    pub(crate) fn take_masks(&mut self) -> Option<Masks> {
        self.masks.as_mut().map(SequenceMasks::get)
    }

    /// Sets the draft, up to the first token that cannot be right.
    pub(crate) fn set_draft(&mut self, mut tokens: Vec<u32>) {
        let known = tokens.iter().position(|&token| token as usize >= self.vocab_size);
        tokens.truncate(known.unwrap_or(tokens.len()));
        if let Some(masks) = self.masks.as_mut().filter(|_| !tokens.is_empty()) {
            tokens.truncate(masks.draft(&tokens));
        }
        self.draft.tokens = tokens;
    }

    /// Shortens the draft so that no drafted token reaches a due snapshot.
    pub(crate) fn truncate_draft(&mut self) {
        let computed = self.progress.num_computed_tokens;
        if let Some(&at) = self.snapshots.due_at.range(computed + 1..).next() {
            self.draft.tokens.truncate(at.saturating_sub(computed + 2));
        }
    }

    /// Rewinds the rejected tokens of a verified draft.
    #[track_caller]
    pub(crate) fn on_verified(&mut self, drafted: usize, accepted: usize) {
        self.rewind(drafted - accepted);
        self.speculation.on_verified(drafted, accepted);
    }
}
