//! Admission under a memory limit: the prefix cache is evicted before running sequences suffer, and
//! the least urgent sequences are preempted before others.

use super::{
    deferred::{Candidate, Deferred},
    delivery::End,
    fault,
    recovery::failure,
    run::{EngineLoop, release_memory},
    sequence::{InitialState, Sequence, TokenMemory},
    submission::Submission,
};
use crate::{
    api::{Event, MAX_DEPTH, MemoryClass, Priority, Request, RequestError, Reservation, WhenFull, megabytes},
    guard::{contained, guarded},
    masks::{MaskWorkers, SequenceMasks},
};

/// Tokens of output reserved at a time: an answer may fill the context, and most are short.
const OUTPUT_SLICE: usize = 256;
/// The part of the prefix cache's memory that features of images may take under a limit.
const FEATURES_PART: usize = 4;
/// Maximum tokens that a step adds: the sampled one, and a draft.
const MAX_STEP_TOKENS: usize = 1 + MAX_DEPTH;

impl EngineLoop {
    /// Admits waiting requests while there is room.
    pub(crate) fn admit(&mut self) {
        let max_batch = self.options.max_batch.max(1);
        while self.running.len() < max_batch {
            let Some((next, memory)) = self.next_candidate(max_batch) else { break };
            match next {
                Candidate::New(submission) => self.start_sequence(*submission, memory),
                Candidate::Preempted(mut sequence) => {
                    sequence.memory = memory;
                    self.running.push(*sequence);
                }
            }
        }
        self.resize_prefix_cache();
    }

    fn start_sequence(&mut self, mut submission: Submission, memory: TokenMemory) {
        let prepare = || {
            fault::point("admit");
            let speculation = self.new_speculation(&submission.request);
            Ok((speculation, InitialState::new(&submission.request, &*self.model, &self.info)))
        };
        match guarded(prepare) {
            Ok((speculation, Ok(state))) => {
                let id = self.next_id;
                self.next_id += 1;
                let masks = self.new_masks(&submission.request);
                let sequence = Sequence::new(id, submission, state, &self.info, speculation, masks, memory);
                self.running.push(sequence);
            }
            Ok((mut speculation, Err(error))) => {
                self.release_drafts(&mut speculation);
                submission.send(Event::Failed(error));
            }
            Err(message) => submission.send(Event::Failed(failure(message))),
        }
    }

    fn new_masks(&mut self, request: &Request) -> Option<SequenceMasks> {
        let constraint = request.constraint.clone()?;
        let workers = match constraint.is_light() {
            true => MaskWorkers::inline(),
            false => self.mask_workers.get_or_insert_with(MaskWorkers::start).clone(),
        };
        Some(SequenceMasks::new(constraint, workers))
    }

    /// The next request to admit, with memory for its prompt and the start of its output. One that
    /// does not fit is deferred; then only more urgent ones are admitted before it, and only a
    /// limited number of them.
    fn next_candidate(&mut self, max_batch: usize) -> Option<(Candidate, TokenMemory)> {
        loop {
            let overdue = self.deferred.iter().position(Deferred::is_overdue);
            let first = overdue.or_else(|| {
                let ranked = self.deferred.iter().enumerate().min_by_key(|(_, d)| d.candidate.rank());
                ranked.map(|(i, _)| i)
            });
            if let Some(first) = first
                && let Ok(memory) = self.reserve_for(first)
            {
                let first = self.deferred.remove(first).candidate;
                self.count_overtaking(first.priority());
                return Some((first, memory));
            }
            if overdue.is_some() {
                return None;
            }
            let blocked = self.deferred.iter().map(|d| d.candidate.priority() as usize).min();
            let is_urgent = |p: Priority| blocked.is_none_or(|blocked| (p as usize) < blocked);
            let rejects = self.options.when_full == WhenFull::Refuse;
            let next = self.pop(max_batch, |p| rejects || is_urgent(p))?;
            let urgent = is_urgent(next.request.priority);
            match self.reserve(&next.request.prompt, &next.request) {
                Ok(memory) if urgent => {
                    self.count_overtaking(next.request.priority);
                    return Some((Candidate::New(Box::new(next)), memory));
                }
                Ok(_) => self.defer_or_reject(next, 0),
                Err(free) => self.defer_or_reject(next, free),
            }
        }
    }

    /// Counts the admission of a request of priority `by`.
    fn count_overtaking(&mut self, by: Priority) {
        self.deferred.iter_mut().for_each(|deferred| deferred.overtake(by));
    }

    fn pop(&mut self, max_batch: usize, may: impl Fn(Priority) -> bool) -> Option<Submission> {
        let background = |s: &&Sequence| s.request.priority == Priority::Background;
        let background = self.running.iter().filter(background).count();
        // Long background work must leave room for one other request.
        let fits = |p| p != Priority::Background || background < (max_batch - 1).max(1);
        self.queue.pop(|p| may(p) && fits(p))
    }

    /// Defers or rejects a request that does not fit into the `free` bytes.
    fn defer_or_reject(&mut self, mut submission: Submission, free: usize) {
        match self.options.when_full {
            WhenFull::Refuse => {
                let tokens = self.first_tokens(&submission.request.prompt, &submission.request);
                let needs = self.info.memory.needs_of(&submission.request, tokens);
                submission.send(Event::Failed(RequestError::MemoryFull { needs, free }));
            }
            WhenFull::Wait => self.deferred.push(Deferred::new(Candidate::New(Box::new(submission)))),
        }
    }

    fn reserve_for(&mut self, deferred: usize) -> Result<TokenMemory, usize> {
        let (tokens, needs) = match &self.deferred[deferred].candidate {
            Candidate::New(new) => self.first_needs(&new.request.prompt, &new.request),
            Candidate::Preempted(sequence) => self.first_needs(&sequence.tokens, &sequence.request),
        };
        Ok(TokenMemory { reservation: self.reserve_bytes(needs)?, tokens })
    }

    /// Memory for a request with these known tokens.
    ///
    /// # Errors
    /// It does not fit; this many bytes are free.
    fn reserve(&mut self, tokens: &[u32], request: &Request) -> Result<TokenMemory, usize> {
        let (tokens, needs) = self.first_needs(tokens, request);
        Ok(TokenMemory { reservation: self.reserve_bytes(needs)?, tokens })
    }

    fn reserve_bytes(&mut self, needs: usize) -> Result<Reservation, usize> {
        let class = MemoryClass::Sequences;
        let limit = self.info.memory.limit;
        match self.options.metrics.account.reserve(class, needs, limit) {
            // Ended sequences hold memory until their state is stored.
            Err(_) if !self.ended.is_empty() => {
                self.store_all_finished();
                self.options.metrics.account.reserve(class, needs, limit)
            }
            reserved => reserved,
        }
    }

    /// Tokens that a request needs room for to start with these known tokens, and their bytes.
    fn first_needs(&self, tokens: &[u32], request: &Request) -> (usize, usize) {
        let tokens = self.first_tokens(tokens, request);
        (tokens, self.info.memory.needs_of(request, tokens))
    }

    fn first_tokens(&self, tokens: &[u32], request: &Request) -> usize {
        let most = request.prompt.len().saturating_add(request.max_tokens).min(self.info.context_length);
        (tokens.len() + OUTPUT_SLICE).min(most)
    }

    /// Reserves memory for what running sequences are about to compute. While none is free, the
    /// least urgent and youngest sequence is preempted: its state is computed again later, and its
    /// answer is the same.
    pub(crate) fn grow_reservations(&mut self) {
        let growing = self.running.iter().filter(|s| s.outgrows_memory(MAX_STEP_TOKENS));
        let mut order: Vec<(usize, u64)> = growing.map(|s| (s.request.priority as usize, s.id)).collect();
        order.sort_unstable();
        for (_, id) in order {
            while let Some(s) = self.running.iter_mut().find(|s| s.id == id) {
                if !s.outgrows_memory(MAX_STEP_TOKENS) {
                    break;
                }
                let tokens = (s.tokens.len() + s.progress.num_unread + OUTPUT_SLICE).min(s.max_tokens());
                let needs = self.info.memory.needs_of(&s.request, tokens);
                if s.memory.reservation.resize(needs, self.info.memory.limit).is_ok() {
                    s.memory.tokens = tokens;
                    break;
                }
                self.preempt_last();
            }
        }
    }

    /// Preempts the least urgent sequence, the youngest of equally urgent ones.
    fn preempt_last(&mut self) {
        // This may end sequences.
        self.collect_launched(&[]);
        let last = |(_, s): &(usize, &Sequence)| (s.request.priority as usize, s.id);
        let Some((at, _)) = self.running.iter().enumerate().max_by_key(last) else { return };
        let mut sequence = self.running.remove(at);
        self.release_drafts(&mut sequence.speculation);
        self.options.metrics.preemptions.add(1);
        tracing::info!(sequence = sequence.id, "preempted: its memory is needed for others");
        let (model, info) = (&*self.model, &self.info);
        match contained(|| sequence.reset(model, info)) {
            Ok(()) => {
                // Shrinking always succeeds.
                _ = sequence.memory.reservation.resize(0, None);
                self.deferred.push(Deferred::new(Candidate::Preempted(Box::new(sequence))));
            }
            Err(message) => self.end(sequence, End::Failed(failure(message))),
        }
    }

    /// Gives the prefix cache half of what running sequences and other engines' caches leave: a
    /// state and its copy exist at the same time. Without a limit, all caches together have the
    /// bytes of one, and each at least an equal part. While the system is short of memory, they
    /// have what is left to them.
    pub(crate) fn resize_prefix_cache(&mut self) {
        let account = &self.options.metrics.account;
        let own = self.cache_memory.as_ref().map_or(0, Reservation::bytes);
        let others = account.bytes(MemoryClass::PrefixCache).saturating_sub(own + self.features.bytes());
        let share = |bytes: usize| bytes.saturating_sub(others).max(bytes / account.num_engines().max(1));
        let (budget, features) = match self.info.memory.limit {
            Some(limit) => {
                let bytes = limit.saturating_sub(account.promised() + others) / 2;
                (bytes, bytes / FEATURES_PART)
            }
            None => (share(self.options.prefix_cache_bytes), usize::MAX),
        };
        let pressure = account.cache_pressure();
        let budget = pressure.most.map_or(budget, |most| budget.min(share(most)));
        self.features.set_budget(features.min(budget));
        self.prefix.set_budget(budget.saturating_sub(self.features.bytes()));
        if self.releases != pressure.releases {
            self.releases = pressure.releases;
            // Those of evicted state among them.
            release_memory();
        }
    }

    /// Has other engines' caches make room if all together are too large.
    pub(crate) fn share_prefix_cache(&self) {
        let account = &self.options.metrics.account;
        let is_full = account.bytes(MemoryClass::PrefixCache) > self.options.prefix_cache_bytes;
        if is_full && account.num_engines() > 1 {
            account.wake_engines();
        }
    }

    /// Evicts from the prefix cache if estimates were wrong and more memory is in use than the
    /// limit.
    ///
    /// # Errors
    /// Evicting all of it is not enough.
    pub(crate) fn check_memory(&mut self) -> Result<(), String> {
        let Some(limit) = self.info.memory.limit else { return Ok(()) };
        if mlx::active_memory() <= limit {
            return Ok(());
        }
        // A launched step holds memory that the next one will find free.
        self.collect_launched(&[]);
        self.features.set_budget(0);
        let over = mlx::active_memory().saturating_sub(limit);
        self.prefix.set_budget(self.prefix.stats().bytes.saturating_sub(over));
        match mlx::active_memory() {
            active if active > limit => Err(format!(
                "out of memory: {} are in use, where the limit is {}",
                megabytes(active),
                megabytes(limit)
            )),
            _ => Ok(()),
        }
    }
}
