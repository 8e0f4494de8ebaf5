//! An admitted request: its tokens, caches, sampler and draft, and what its next step may compute.

use std::collections::BTreeSet;

use super::{
    delivery::{Delivery, End},
    images::SequenceImages,
    phase::Phase,
    pooled::PooledStates,
    progress::Progress,
    row::PromptStates,
    schedule::Demand,
    submission::Submission,
};
use crate::{
    api::{FinishReason, Image, MissReason, ModelInfo, Request, RequestError, Reservation, TokenLogprobs},
    cache::{Cache, WindowEvicted},
    masks::SequenceMasks,
    models::Model,
    prefix::{
        CopiedState, CopyProgress, CopySource, PrefixCache, PrefixKey, PrefixMatch, StateCopy, image_salt,
    },
    sample::Sampler,
    speculate::SequenceSpeculation,
};

pub(crate) struct Sequence {
    pub id: u64,
    pub request: Request,
    /// Prompt and output, as far as read back.
    pub tokens: Vec<u32>,
    pub images: SequenceImages,
    pub progress: Progress,
    pub phase: Phase,
    pub caches: Vec<Cache>,
    pub sampler: Sampler,
    pub draft: DraftTokens,
    /// Only with a constraint.
    pub masks: Option<SequenceMasks>,
    /// Its drafter and acceptance statistics.
    pub speculation: SequenceSpeculation,
    pub reuse: Reuse,
    pub snapshots: Snapshots,
    /// A step with this sequence failed; it runs alone until it has delivered a token.
    pub quarantined: bool,
    pub memory: TokenMemory,
    /// Hidden states of the prompt tokens read back, if the request wants an embedding.
    pooled: PooledStates,
    delivery: Delivery,
    pub max_new_tokens: usize,
    pub vocab_size: usize,
}

/// Tokens proposed for the next step; only while no sampled token is unread.
#[derive(Default)]
pub(crate) struct DraftTokens {
    pub tokens: Vec<u32>,
    /// Tokens that the constraint forces after the known ones.
    pub forced: Vec<u32>,
}

/// State that a sequence takes from the prefix cache.
#[derive(Default)]
pub(crate) struct Reuse {
    /// Set after a failure: never resume from stored state again.
    pub bypass_cache: bool,
    /// Set once it resumed from lossy state; all it computes afterwards is lossy too.
    pub lossy: bool,
    /// Sequences that it will not wait for again.
    pub waited_for: Vec<u64>,
}

/// State that a sequence leaves in the prefix cache.
pub(crate) struct Snapshots {
    /// Positions at which to copy its state; no step crosses one.
    pub due_at: BTreeSet<usize>,
    /// Positions whose copies are being computed.
    pub in_flight: Vec<usize>,
    pub copied: CopyProgress,
    /// Whether all numbers in its state have been finite; other state is never stored.
    pub all_finite: bool,
    /// The copy of all its state once it has ended.
    copying: Option<StateCopy>,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        Snapshots {
            due_at: BTreeSet::new(),
            in_flight: vec![],
            copied: CopyProgress::default(),
            all_finite: true,
            copying: None,
        }
    }
}

/// Reserved memory, and the number of tokens for which it suffices.
pub(crate) struct TokenMemory {
    pub reservation: Reservation,
    pub tokens: usize,
}

/// Initial state of a sequence; building it may panic.
pub(crate) struct InitialState {
    caches: Vec<Cache>,
    sampler: Sampler,
    images: SequenceImages,
}

impl InitialState {
    /// # Errors
    /// An image does not fit the model.
    #[track_caller]
    pub(crate) fn new(
        request: &Request,
        model: &dyn Model,
        info: &ModelInfo,
    ) -> Result<InitialState, RequestError> {
        let sampler = Sampler::new(&request.sampling, info.vocab_size, &request.prompt, &[]);
        let images = SequenceImages::new(request, model)?;
        Ok(InitialState { caches: model.make_caches(), sampler, images })
    }
}

impl Sequence {
    pub(crate) fn new(
        id: u64,
        mut submission: Submission,
        InitialState { caches, sampler, images }: InitialState,
        info: &ModelInfo,
        speculation: SequenceSpeculation,
        masks: Option<SequenceMasks>,
        memory: TokenMemory,
    ) -> Sequence {
        submission.meter.admitted();
        let mut request = submission.request.clone();
        request.cache_salt = image_salt(&request);
        let room = match request.pooling {
            Some(_) => 0,
            None => info.context_length - request.prompt.len(),
        };
        Sequence {
            id,
            tokens: request.prompt.clone(),
            images,
            progress: Progress::default(),
            phase: Phase::waiting(),
            caches,
            sampler,
            draft: DraftTokens::default(),
            masks,
            speculation,
            reuse: Reuse::default(),
            snapshots: Snapshots::default(),
            quarantined: false,
            memory,
            pooled: PooledStates::default(),
            delivery: Delivery::new(submission),
            max_new_tokens: request.max_tokens.min(room),
            vocab_size: info.vocab_size,
            request,
        }
    }

    /// Copies stored state into the caches, as far as the time between two steps allows; once all
    /// is there, it runs.
    ///
    /// # Errors
    /// There is no memory for it.
    #[track_caller]
    pub(crate) fn attach_prefix(&mut self, prefix: &mut PrefixCache) -> mlx::Result<()> {
        if self.phase.is_waiting() {
            self.attach(prefix);
        }
        if let Phase::Resuming { resume, from } = &mut self.phase
            && resume.advance(&mut self.caches, &mut prefix.copy_budget)?
        {
            self.phase = Phase::Running { resumed_from: *from };
        }
        Ok(())
    }

    /// Starts over without any stored state.
    pub(crate) fn attach_nothing(&mut self, model: &dyn Model, prefix: &mut PrefixCache) {
        self.reuse.bypass_cache = true;
        self.caches = model.make_caches();
        self.attach(prefix);
    }

    #[track_caller]
    fn attach(&mut self, prefix: &mut PrefixCache) {
        let exact = self.exact_tokens().len();
        let hit = match self.reuse.bypass_cache {
            true => PrefixMatch::none(MissReason::Disabled),
            false => prefix.attach(&self.request, &self.keys()[..exact], &self.caches),
        };
        self.phase = match hit.restore {
            Some(resume) => Phase::Resuming { resume, from: hit.position },
            None => Phase::Running { resumed_from: hit.position },
        };
        self.progress.num_computed_tokens = hit.position;
        self.snapshots.due_at = hit.snapshot_at;
        self.snapshots.copied = CopyProgress { stored: hit.position, copied: hit.position };
        self.reuse.lossy |= hit.lossy;
        self.delivery.report_cache(hit.report);
    }

    /// Whether it waits for state that is read from the disk.
    pub(crate) fn waits_for_disk(&mut self, prefix: &mut PrefixCache) -> bool {
        let exact = self.exact_tokens().len();
        let Phase::Waiting(wait) = &mut self.phase else { return false };
        !self.reuse.bypass_cache
            && prefix.should_wait_for_disk(
                &self.request,
                self.images.keys(&self.tokens[..exact]),
                &mut wait.fetch,
            )
    }

    /// Forgets all state; prompt and output are computed again. The answer does not change: it
    /// depends on the request alone.
    pub(crate) fn reset(&mut self, model: &dyn Model, info: &ModelInfo) {
        self.phase = Phase::waiting();
        self.progress = Progress::default();
        self.snapshots = Snapshots::default();
        self.pooled = PooledStates::default();
        self.draft = DraftTokens::default();
        self.speculation.on_restart();
        self.caches = model.make_caches();
        self.images.reset();
        let (prompt, generated) = self.tokens.split_at(self.request.prompt.len());
        self.sampler = Sampler::new(&self.request.sampling, info.vocab_size, prompt, generated);
    }

    /// Resets it after a failed step, which left its state undefined.
    pub(crate) fn quarantine(&mut self, model: &dyn Model, info: &ModelInfo) {
        self.quarantined = true;
        self.reset(model, info);
    }

    pub(crate) fn submission(&self) -> &Submission {
        self.delivery.submission()
    }

    pub(crate) fn cancel(&self) {
        self.submission().cancel();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.submission().is_cancelled()
    }
}

/// Tokens.
impl Sequence {
    /// Tokens that it can compute in the next step.
    pub(crate) fn demand(&self) -> Demand {
        let computed = self.progress.num_computed_tokens;
        if !self.phase.is_running() {
            Demand::Nothing
        } else if self.can_verify_draft() {
            Demand::Decode(self.draft.tokens.len())
        } else if computed < self.tokens.len() {
            let missing = self.images.next_missing(&self.request.images, computed);
            let missing = missing.map(|index| self.request.images[index].span().start);
            if missing == Some(computed) {
                return Demand::Nothing;
            }
            let ends = [self.exact_tokens().len(), self.tokens.len()].into_iter();
            // The state before the prompt's last token is copied by a step across it.
            let after = |at: usize| if at == self.before_last_prompt_token() { at + 1 } else { at };
            let ends = ends.chain(self.snapshots.due_at.iter().map(|&at| after(at))).chain(missing);
            let end = ends.filter(|&at| at > computed).min().unwrap_or(self.tokens.len());
            Demand::Prefill(end.min(self.tokens.len()) - computed)
        } else if self.generated() + self.progress.num_unread < self.max_new_tokens {
            Demand::Decode(0)
        } else {
            Demand::Nothing
        }
    }

    /// Prefix-cache keys of its tokens.
    pub(crate) fn keys(&self) -> &[u32] {
        self.images.keys(&self.tokens)
    }

    /// The tokens of its next step, if it computes about `num_tokens`: no step ends inside an
    /// image.
    pub(crate) fn with_whole_images(&self, num_tokens: usize) -> usize {
        let computed = self.progress.num_computed_tokens;
        let end = computed + num_tokens;
        let spans = self.request.images.iter().map(Image::span);
        match spans.clone().find(|span| span.start < end && end < span.end) {
            Some(span) if span.start > computed => span.start - computed,
            Some(span) => span.end - computed,
            None => num_tokens,
        }
    }

    /// Whether it samples once `more` tokens are computed.
    pub(crate) fn samples_after(&self, more: usize) -> bool {
        self.request.pooling.is_none() && self.progress.num_computed_tokens + more >= self.tokens.len()
    }

    /// Tokens generated and read back.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// Tokens of prompt and output when it ends, at most.
    pub(crate) fn max_tokens(&self) -> usize {
        self.request.prompt.len() + self.max_new_tokens
    }

    /// Whether its memory may be too small for `more` tokens.
    pub(crate) fn outgrows_memory(&self, more: usize) -> bool {
        let room = self.memory.tokens;
        self.tokens.len() + self.progress.num_unread + more > room && room < self.max_tokens()
    }

    /// Tokens whose state is the whole model's, so that any sequence with this prefix can use it:
    /// all of them, or the prompt's if layers are skipped after it.
    pub(crate) fn exact_tokens(&self) -> &[u32] {
        if self.speculation.is_lossy() { &self.tokens[..self.request.prompt.len()] } else { &self.tokens }
    }

    /// Key under which these tokens are stored.
    pub(crate) fn prefix_key(&self) -> PrefixKey<'_> {
        PrefixKey::of(&self.request, self.images.keys(self.exact_tokens()))
    }

    /// Layers that its next step skips.
    pub(crate) fn skipped_layers(&self) -> &[usize] {
        let in_prompt = self.progress.num_computed_tokens < self.request.prompt.len();
        if in_prompt { &[] } else { self.speculation.skipped_layers() }
    }

    /// How many of the last of `num_tokens` in its next step may be rewound: its draft, or the
    /// prompt's last token if the state before that is copied.
    pub(crate) fn num_rewindable(&self, num_tokens: usize) -> usize {
        let (last, computed) = (self.before_last_prompt_token(), self.progress.num_computed_tokens);
        let across =
            computed < last && computed + num_tokens == last + 1 && self.snapshots.due_at.contains(&last);
        self.draft.tokens.len().max(usize::from(across))
    }

    fn before_last_prompt_token(&self) -> usize {
        self.request.prompt.len() - 1
    }

    /// Forgets the last `tokens` computed, all of them drafted.
    #[track_caller]
    pub(crate) fn rewind(&mut self, tokens: usize) {
        if tokens > 0 {
            self.progress.num_computed_tokens -= tokens;
            let rewound: Result<(), WindowEvicted> =
                self.caches.iter_mut().try_for_each(|c| c.rewind(tokens));
            rewound.unwrap_or_else(|WindowEvicted| {
                panic!("a window has dropped tokens before a draft of {tokens}")
            });
        }
    }
}

/// Snapshots.
impl Sequence {
    /// Takes the positions, ascending, whose state is to be copied now: the current one, and the
    /// one before it.
    pub(crate) fn take_due(&mut self) -> Vec<usize> {
        let (last, computed) = (self.before_last_prompt_token(), self.progress.num_computed_tokens);
        let due_at = &mut self.snapshots.due_at;
        let before = (computed == last + 1 && due_at.remove(&last)).then_some(last);
        let here = due_at.remove(&computed).then_some(computed);
        let due: Vec<usize> = before.into_iter().chain(here).collect();
        self.snapshots.in_flight.extend(&due);
        due
    }

    /// Whether a snapshot at `position` is due or in flight.
    pub(crate) fn will_snapshot(&self, position: usize) -> bool {
        let due = position > self.progress.num_computed_tokens && self.snapshots.due_at.contains(&position);
        due || self.snapshots.in_flight.contains(&position)
    }

    /// Copies its state once it has ended, as far as the time between two steps allows; `true` once
    /// all is copied.
    ///
    /// # Errors
    /// There is no memory for it.
    #[track_caller]
    pub(crate) fn copy_all(&mut self, prefix: &mut PrefixCache) -> mlx::Result<bool> {
        let (computed, exact) = (self.progress.num_computed_tokens, self.exact_tokens().len());
        let usable = self.phase.is_running() && self.snapshots.all_finite;
        if !usable || computed == 0 || computed > exact {
            return Ok(true);
        }
        let copying = &mut self.snapshots.copying;
        if copying.is_none() {
            let key = PrefixKey::of(&self.request, self.images.keys(&self.tokens[..computed]));
            let caches = &self.caches[..];
            let source = CopySource { key, caches, ahead: 0, lossy: self.reuse.lossy };
            *copying = prefix.start_copy(&source, CopyProgress::default());
        }
        match copying {
            Some(copying) => copying.advance(&self.caches, &mut prefix.copy_budget),
            None => Ok(true),
        }
    }

    /// The state that [`copy_all`](Sequence::copy_all) has copied.
    pub(crate) fn take_copied(&mut self) -> Option<CopiedState> {
        self.snapshots.copying.take().map(StateCopy::into_state)
    }
}

/// Results.
impl Sequence {
    /// Reports that the first `computed` prompt tokens are computed.
    pub(crate) fn deliver_progress(&mut self, computed: usize) {
        if self.generated() == 0 {
            self.delivery.send_progress(computed);
        }
    }

    /// Takes log-probabilities of prompt tokens `at..`.
    pub(crate) fn deliver_prompt_logprobs(&mut self, at: usize, logprobs: Vec<TokenLogprobs>) {
        self.delivery.add_prompt_logprobs(at, logprobs);
    }

    /// Sends logits after positions `at..`, `vocab_size` each.
    pub(crate) fn deliver_logits(&mut self, at: usize, values: &[f32]) {
        self.delivery.send_logits(at, values, self.vocab_size);
    }

    /// Takes hidden states of prompt tokens; returns why the sequence ends with them, if it does.
    ///
    /// # Errors
    /// A number is not finite.
    pub(crate) fn deliver_hidden(
        &mut self,
        states: &PromptStates,
    ) -> Result<Option<FinishReason>, RequestError> {
        self.pooled.add(states.num_tokens, &states.values);
        if !states.ends_prompt {
            return Ok(None);
        }
        let embedding = self.pooled.mean().ok_or(RequestError::NotFinite)?;
        self.delivery.buffer_embedding(embedding);
        Ok(Some(FinishReason::Length))
    }

    /// Takes a token read back; returns why the sequence ends with it, if it does.
    pub(crate) fn deliver_token(
        &mut self,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        info: &ModelInfo,
    ) -> Option<FinishReason> {
        if self.request.prompt_logprobs && self.generated() == 0 {
            self.delivery.buffer_prompt();
        }
        self.tokens.push(id);
        self.images.push(id);
        self.sampler.push(id);
        let is_eos = info.eos_ids.contains(&id) && !self.request.ignore_eos;
        if is_eos || self.request.stop_token_ids.contains(&id) {
            return Some(FinishReason::Eos(id));
        }
        self.delivery.buffer_token(id, logprobs);
        (self.generated() == self.max_new_tokens).then_some(FinishReason::Length)
    }

    /// Hands the caller the events of a step.
    pub(crate) fn flush(&mut self) {
        self.delivery.flush();
    }

    /// Sends the final event.
    pub(crate) fn end(&mut self, end: End) {
        let lossy = self.reuse.lossy;
        self.delivery.end(end, self.generated(), &self.speculation, lossy);
    }
}
