//! One request on its way: its tokens, its caches, its sampler.

use std::collections::BTreeSet;

use crate::{
    account::Reservation,
    cache::{Cache, WindowEvicted},
    constrain::TokenSet,
    handle::Submission,
    models::Model,
    prefix::{
        CopiedState, CopyProgress, CopySource, DiskFetch, PrefixCache, PrefixMatch, StateCopy, StateRestore,
    },
    request::{
        CacheReport, Event, FinishReason, Lossy, MissReason, ModelInfo, Request, RequestError, TokenLogprobs,
        Usage,
    },
    sample::Sampler,
    schedule::Want,
    speculate::SequenceSpeculation,
    step::Last,
};

/// How a sequence ends.
pub enum End {
    Finished(FinishReason),
    Failed(RequestError),
}

/// What a sequence begins with.
pub struct State {
    caches: Vec<Cache>,
    sampler: Sampler,
}

pub struct Sequence {
    pub id: u64,
    pub request: Request,
    submission: Submission,
    /// Prompt and output, as far as read back.
    pub tokens: Vec<u32>,
    /// Tokens whose state is in the caches, or will be once the launched steps have run.
    pub computed: usize,
    pub caches: Vec<Cache>,
    pub sampler: Sampler,
    /// The token sampled last; the next one to compute.
    pub last: Option<Last>,
    /// Tokens sampled but not read back yet.
    pub unread: usize,
    /// Tokens proposed to come behind the known ones, for the next step; only while nothing is unread.
    pub draft: Vec<u32>,
    /// What may be chosen behind the known tokens and behind each of the draft; empty if there is no constraint, or it
    /// was not asked yet.
    pub allowed: Vec<TokenSet>,
    /// Who proposes for it, and what became of that.
    pub speculation: SequenceSpeculation,
    /// Most tokens to generate.
    limit: usize,
    /// Whether the caches hold what can be reused of past sequences: then it can be stepped.
    pub begun: bool,
    /// Whether it went on from state of past sequences.
    pub resumed: bool,
    /// Whether it ever went on from state that is not what the model computes; then its own is none either.
    pub lossy: bool,
    /// Never resume from past sequences: it failed when it did.
    pub cold: bool,
    /// Positions at which to copy its state for others; no step goes across one.
    pub keep_at: BTreeSet<usize>,
    /// The positions whose copies are on their way.
    pub keeping: Vec<usize>,
    /// What has been copied of its state, and that which is on its way into its caches: then it has not begun yet.
    pub copied: CopyProgress,
    resume: Option<StateRestore>,
    /// Copies of all its state, once it has ended.
    copying: Option<StateCopy>,
    /// What it waits for that is read from the disk.
    fetch: DiskFetch,
    /// Whether all its numbers have been finite so far; others may only go on from such state.
    pub sound: bool,
    report: Option<CacheReport>,
    /// The sequence whose state it waits for before it begins, and the position; `waited` are those it will not wait for
    /// again.
    pub waiting: Option<(u64, usize)>,
    pub waited: Vec<u64>,
    /// A step with this sequence in it failed; it runs alone until it has proved itself.
    pub suspect: bool,
    /// What it may take of the memory limit, and up to how many tokens that is enough.
    pub memory: Reservation,
    pub room: usize,
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// Positions whose logits were reported.
    logits_reported: usize,
    vocab_size: usize,
}

impl Sequence {
    /// What a sequence for this request begins with.
    #[track_caller]
    pub fn state(request: &Request, model: &dyn Model, info: &ModelInfo) -> State {
        let sampler = Sampler::new(&request.sampling, info.vocab_size, &request.prompt, &[]);
        State { caches: model.make_caches(), sampler }
    }

    pub fn new(
        id: u64,
        mut submission: Submission,
        State { caches, sampler }: State,
        info: &ModelInfo,
        speculation: SequenceSpeculation,
        memory: Reservation,
    ) -> Sequence {
        submission.meter.admitted();
        let request = submission.request.clone();
        let room = info.context_length - request.prompt.len();
        Sequence {
            id,
            tokens: request.prompt.clone(),
            computed: 0,
            caches,
            sampler,
            last: None,
            unread: 0,
            draft: vec![],
            allowed: vec![],
            speculation,
            limit: request.max_tokens.min(room),
            begun: false,
            resumed: false,
            lossy: false,
            cold: false,
            keep_at: BTreeSet::new(),
            keeping: vec![],
            copied: CopyProgress::default(),
            resume: None,
            copying: None,
            fetch: DiskFetch::default(),
            sound: true,
            report: None,
            waiting: None,
            waited: vec![],
            suspect: false,
            memory,
            room: 0,
            prompt_logprobs: vec![None],
            logits_reported: 0,
            vocab_size: info.vocab_size,
            request,
            submission,
        }
    }

    /// Resumes from what past sequences left behind, as far as the time between two steps allows: it has begun once all of
    /// that is copied.
    ///
    /// # Errors
    /// There is no memory for it.
    #[track_caller]
    pub fn begin(&mut self, prefix: &mut PrefixCache) -> mlx::Result<()> {
        if self.resume.is_none() {
            self.attach(prefix);
        }
        let done = match &mut self.resume {
            Some(resume) => resume.advance(&mut self.caches, &mut prefix.copy_budget)?,
            None => true,
        };
        if done {
            (self.begun, self.resume) = (true, None);
        }
        Ok(())
    }

    /// Whether it is on its way to begin, and needs nothing else for that.
    pub fn is_resuming(&self) -> bool {
        self.resume.is_some()
    }

    #[track_caller]
    fn attach(&mut self, prefix: &mut PrefixCache) {
        let exact = self.exact_tokens().len();
        let begun = match self.cold {
            true => PrefixMatch::none(MissReason::Disabled),
            false => prefix.attach(&self.request, &self.tokens[..exact], &self.caches),
        };
        (self.resume, self.resumed) = (begun.restore, begun.position > 0);
        (self.computed, self.keep_at) = (begun.position, begun.snapshot_at);
        self.copied = CopyProgress { stored: begun.position, copied: begun.position };
        self.lossy |= begun.lossy;
        if self.report.is_none() {
            self.report = Some(begun.report);
            self.submission.meter.began(self.request.prompt.len(), &begun.report);
        }
    }

    /// Begins anew, without anything of past sequences.
    pub fn begin_cold(&mut self, model: &dyn Model, prefix: &mut PrefixCache) {
        (self.cold, self.resume) = (true, None);
        self.caches = model.make_caches();
        self.attach(prefix);
        self.begun = true;
    }

    /// What the sequence could do in the next step.
    pub fn wants(&self) -> Want {
        if !self.begun {
            Want::Nothing
        } else if self.is_read() {
            Want::Decode(self.draft.len())
        } else if self.computed < self.tokens.len() {
            let ends = [self.exact_tokens().len(), self.tokens.len()].into_iter();
            // The state before the prompt's last token is copied from a step across it.
            let behind = |at: usize| if at == self.before_last() { at + 1 } else { at };
            let ends = ends.chain(self.keep_at.iter().map(|&at| behind(at)));
            let end = ends.filter(|&at| at > self.computed).min().unwrap_or(self.tokens.len());
            Want::Prefill(end.min(self.tokens.len()) - self.computed)
        } else if self.generated() + self.unread < self.limit {
            Want::Decode(0)
        } else {
            Want::Nothing
        }
    }

    /// Tokens whose state is that of the whole model, and so any other sequence's that begins with them: all of them, or
    /// those of the prompt if layers are left out behind it.
    pub fn exact_tokens(&self) -> &[u32] {
        if self.speculation.is_lossy() { &self.tokens[..self.request.prompt.len()] } else { &self.tokens }
    }

    /// The position before the last token of the prompt.
    fn before_last(&self) -> usize {
        self.request.prompt.len() - 1
    }

    /// Of so many tokens in its next step the last ones that may have to be forgotten again: its draft, or the prompt's last
    /// token, if the state before it is to be copied behind it.
    pub fn ahead(&self, tokens: usize) -> usize {
        let (last, end) = (self.before_last(), self.computed + tokens);
        let across = self.computed < last && end == last + 1 && self.keep_at.contains(&last);
        self.draft.len().max(usize::from(across))
    }

    /// Layers that its next step goes without.
    pub fn left_out(&self) -> &[usize] {
        if self.computed < self.request.prompt.len() { &[] } else { self.speculation.skipped_layers() }
    }

    /// Whether it decodes, and all but its last token is computed: then a draft may come behind that.
    pub fn is_read(&self) -> bool {
        self.begun && self.generated() > 0 && self.computed + 1 == self.tokens.len()
    }

    /// Most tokens of a draft: behind the last one another token is always generated.
    pub fn most_drafted(&self) -> usize {
        (self.limit - self.generated()).saturating_sub(1)
    }

    /// Asks what may come behind the known tokens, if there is a constraint; `false` if nothing may.
    pub fn constrain(&mut self) -> bool {
        if self.allowed.is_empty() && self.unread == 0 {
            self.allowed.extend(self.next_allowed(&[]));
        }
        self.allowed.first().is_none_or(|allowed| !allowed.is_empty())
    }

    /// Takes a draft, as far as it can be right.
    pub fn set_draft(&mut self, tokens: Vec<u32>) {
        self.draft.clear();
        for token in tokens {
            let allowed = self.allowed.last().is_none_or(|allowed| allowed.allows(token));
            if !allowed || token as usize >= self.vocab_size {
                break;
            }
            self.draft.push(token);
            if let Some(behind) = self.next_allowed(&self.draft) {
                // Whether that fails the sequence shows when it gets there.
                if behind.is_empty() {
                    self.draft.pop();
                    break;
                }
                self.allowed.push(behind);
            }
        }
    }

    /// Shortens the draft so that no step goes across a position at which its state is to be copied.
    pub fn cut_draft(&mut self) {
        if let Some(&at) = self.keep_at.range(self.computed + 1..).next() {
            self.draft.truncate(at.saturating_sub(self.computed + 2));
            self.allowed.truncate(self.draft.len() + 1);
        }
    }

    /// Whether its reservation may be too small for `ahead` more tokens.
    pub fn needs_room(&self, ahead: usize) -> bool {
        self.tokens.len() + self.unread + ahead > self.room && self.room < self.most_tokens()
    }

    /// Tokens of prompt and output when it ends, at the latest.
    pub fn most_tokens(&self) -> usize {
        self.request.prompt.len() + self.limit
    }

    /// What may come behind the known tokens and `draft`.
    fn next_allowed(&self, draft: &[u32]) -> Option<TokenSet> {
        let constraint = self.request.constraint.as_ref()?;
        let history = [&self.tokens[self.request.prompt.len()..], draft].concat();
        Some(constraint.next(&history).set(self.vocab_size))
    }

    /// Forgets the last `tokens` that were computed, all of a draft.
    #[track_caller]
    pub fn rewind(&mut self, tokens: usize) {
        if tokens > 0 {
            self.computed -= tokens;
            let rewound: Result<(), WindowEvicted> =
                self.caches.iter_mut().try_for_each(|c| c.rewind(tokens));
            rewound.unwrap_or_else(|WindowEvicted| {
                panic!("a window has dropped tokens behind a draft of {tokens}")
            });
        }
    }

    /// Told that of so many drafted tokens it has taken the first `accepted`, and which it has computed.
    #[track_caller]
    pub fn on_verified(&mut self, drafted: usize, accepted: usize) {
        self.rewind(drafted - accepted);
        self.speculation.on_verified(drafted, accepted);
        let next = self.tokens[self.computed.min(self.tokens.len() - 1)];
        self.sampler.judged(accepted, next);
    }

    /// Tokens generated and read back.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// The positions, ascending, at which its state is to be copied for others where it is now: it may be one behind them.
    pub fn due(&mut self) -> Vec<usize> {
        let last = self.before_last();
        let before = (self.computed == last + 1 && self.keep_at.remove(&last)).then_some(last);
        let here = self.keep_at.remove(&self.computed).then_some(self.computed);
        let due: Vec<usize> = before.into_iter().chain(here).collect();
        self.keeping.extend(&due);
        due
    }

    /// Whether it waits for state that is read from the disk.
    pub fn waits_for_disk(&mut self, prefix: &mut PrefixCache) -> bool {
        let exact = self.exact_tokens().len();
        !self.cold && prefix.should_wait_for_disk(&self.request, &self.tokens[..exact], &mut self.fetch)
    }

    /// Copies its state once it has ended, as far as it is certain and the time between two steps allows; `true` once all
    /// is copied.
    ///
    /// # Errors
    /// There is no memory for it.
    #[track_caller]
    pub fn copy_all(&mut self, prefix: &mut PrefixCache) -> mlx::Result<bool> {
        let (computed, exact) = (self.computed, self.exact_tokens().len());
        if !self.begun || !self.sound || computed == 0 || computed > exact {
            return Ok(true);
        }
        if self.copying.is_none() {
            let (tokens, caches) = (&self.tokens[..computed], &self.caches[..]);
            let source = CopySource { tokens, caches, ahead: 0, lossy: self.lossy };
            self.copying = prefix.start_copy(&source, CopyProgress::default());
        }
        match &mut self.copying {
            Some(copying) => copying.advance(&self.caches, &mut prefix.copy_budget),
            None => Ok(true),
        }
    }

    /// What [`copy_all`](Sequence::copy_all) has copied.
    pub fn take_copied(&mut self) -> Option<CopiedState> {
        self.copying.take().map(StateCopy::into_state)
    }

    /// Whether state behind `position` is on its way to where others find it.
    pub fn will_keep(&self, position: usize) -> bool {
        (position > self.computed && self.keep_at.contains(&position)) || self.keeping.contains(&position)
    }

    pub fn submission(&self) -> &Submission {
        &self.submission
    }

    pub fn cancel(&self) {
        self.submission.cancel();
    }

    pub fn is_cancelled(&self) -> bool {
        self.submission.is_cancelled()
    }

    /// Forgets all state and computes prompt and output again: after a failed step nothing else is certain. What
    /// comes next is the same token as before, because output depends on the request alone.
    pub fn restart(&mut self, model: &dyn Model, info: &ModelInfo) {
        self.suspect = true;
        self.reset(model, info);
    }

    /// Forgets all state; it is computed again from the tokens.
    pub fn reset(&mut self, model: &dyn Model, info: &ModelInfo) {
        (self.begun, self.sound) = (false, true);
        (self.resume, self.waiting) = (None, None);
        self.speculation.on_restart();
        self.fetch = DiskFetch::default();
        self.keep_at.clear();
        self.keeping.clear();
        self.copied = CopyProgress::default();
        (self.computed, self.unread, self.last) = (0, 0, None);
        self.draft.clear();
        self.allowed.clear();
        self.caches = model.make_caches();
        let (prompt, generated) = self.tokens.split_at(self.request.prompt.len());
        self.sampler = Sampler::new(&self.request.sampling, info.vocab_size, prompt, generated);
    }

    /// Takes in log-probabilities of prompt tokens `at..`; a replay brings some a second time.
    pub fn prompt_logprobs(&mut self, at: usize, logprobs: Vec<TokenLogprobs>) {
        let have = self.prompt_logprobs.len();
        self.prompt_logprobs.extend(logprobs.into_iter().skip(have - at).map(Some));
    }

    /// Takes in logits behind positions `at..`, `vocab_size` each; a replay brings some a second time.
    pub fn logits(&mut self, at: usize, values: &[f32], vocab_size: usize) {
        for (position, values) in (at..).zip(values.chunks(vocab_size)) {
            if position == self.logits_reported {
                self.logits_reported += 1;
                // Many of them are large: each is the caller's as soon as it is there.
                self.emit(Event::Logits { position, values: values.to_vec() });
            }
        }
    }

    /// Takes in a token read back; returns why the sequence ends with it, if it does.
    pub fn push(
        &mut self,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        info: &ModelInfo,
    ) -> Option<FinishReason> {
        if self.request.prompt_logprobs && self.generated() == 0 {
            let all = std::mem::take(&mut self.prompt_logprobs);
            self.submission.note(Event::Prompt(all));
        }
        self.tokens.push(id);
        self.allowed.clear();
        if info.eos_ids.contains(&id) && !self.request.ignore_eos {
            return Some(FinishReason::Eos(id));
        }
        self.submission.note(Event::Token { id, logprobs });
        (self.generated() == self.limit).then_some(FinishReason::Length)
    }

    /// Tells the caller of the end.
    pub fn end(&mut self, end: End) {
        match end {
            End::Finished(reason) => self.finish(reason),
            End::Failed(error) => self.emit(Event::Failed(error)),
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        let report = self.report.unwrap_or_default();
        let compressed = self.lossy.then_some(Lossy::CompressedCache);
        let skipped = self.speculation.is_lossy().then_some(Lossy::SkippedLayers);
        let usage = Usage {
            prompt_tokens: self.request.prompt.len(),
            completion_tokens: self.generated(),
            cached_tokens: report.reused,
            cache: report,
            speculation: self.speculation.report(),
            lossy: [compressed, skipped].into_iter().flatten().collect(),
        };
        self.emit(Event::Finished { reason, usage });
    }

    /// Tells the caller what a step brought.
    pub fn tell(&mut self) {
        self.submission.tell();
    }

    /// Tells the caller an event, behind all others.
    fn emit(&mut self, event: Event) {
        self.submission.emit(event);
    }
}
