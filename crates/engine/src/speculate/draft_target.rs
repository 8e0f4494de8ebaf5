//! A running sequence as speculation sees it. The engine loop implements this for its sequences.

use super::{controller::SequenceLength, drafter::DraftRequest, sequence_speculation::SequenceSpeculation};
use crate::{
    api::Request,
    cache::{Cache, CacheGuard},
};

pub(crate) trait DraftTarget {
    fn view(&mut self) -> TargetView<'_>;

    /// Whether all tokens but the last are computed and none is unread, so that a draft can follow.
    fn can_take_draft(&self) -> bool;

    /// Takes a draft for the next step, as far as the request's constraint allows its tokens;
    /// returns the length of that part.
    fn take_draft(&mut self, tokens: Vec<u32>) -> usize;
}

pub(crate) struct TargetView<'a> {
    pub request: &'a Request,
    /// Prompt and output, without unread tokens.
    pub tokens: &'a [u32],
    /// Tokens that the request's constraint forces next.
    pub forced: &'a [u32],
    /// Maximum tokens of a draft, so that the token after it still belongs to the answer.
    pub max_draft: usize,
    pub caches: &'a mut [Cache],
    pub speculation: &'a mut SequenceSpeculation,
}

impl<'a> TargetView<'a> {
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    pub(super) fn length(&self) -> SequenceLength {
        SequenceLength { generated: self.generated(), max_remaining: self.max_draft }
    }

    /// A request to the drafter with this index; with the sequence's caches if it uses them.
    pub(super) fn draft_request(self, drafter: usize, depth: usize, with_caches: bool) -> DraftRequest<'a> {
        let TargetView { request, tokens, forced, caches, speculation, .. } = self;
        speculation.caches_in_use |= with_caches;
        DraftRequest {
            tokens,
            prompt: request.prompt.len(),
            cache_salt: request.cache_salt,
            depth,
            sampling: &request.sampling,
            forced,
            state: &mut speculation.states[drafter],
            target_cache: with_caches.then(|| CacheGuard::new(caches)),
        }
    }
}
