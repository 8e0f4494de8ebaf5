//! Who is let in under a memory limit, and what makes room: running sequences go before what is kept of past ones, and
//! urgent ones before others.

use crate::{
    account::{MemoryClass, Reservation},
    handle::Submission,
    memory::megabytes,
    options::WhenFull,
    request::{Event, Priority, Request, RequestError},
    run::{Runner, contained, failure},
    sequence::{End, Sequence},
    speculate::MAX_DEPTH,
};

/// Tokens of an answer that there must be room for at a time: a whole answer may come to the rest of the context, and
/// most are short.
const SLICE: usize = 256;
/// Tokens that a step may add: the one sampled, and a draft.
const AHEAD: usize = 1 + MAX_DEPTH;

/// What waits for memory.
pub enum Waiting {
    New(Box<Submission>),
    /// Its state made room for that of others; it is computed again.
    Paused(Box<Sequence>),
}

/// Its turn has come, and there is no room for it yet.
pub struct Deferred {
    pub what: Waiting,
    /// More urgent ones that were let in since.
    overtaken: usize,
}

impl Waiting {
    pub fn submission(&self) -> &Submission {
        match self {
            Waiting::New(submission) => submission,
            Waiting::Paused(sequence) => sequence.submission(),
        }
    }

    fn priority(&self) -> Priority {
        self.submission().request.priority
    }

    /// Most urgent ones first, and those first that were let in before.
    fn rank(&self) -> (usize, u64) {
        let id = match self {
            Waiting::New(_) => u64::MAX,
            Waiting::Paused(sequence) => sequence.id,
        };
        (self.priority() as usize, id)
    }
}

impl Deferred {
    fn new(what: Waiting) -> Deferred {
        Deferred { what, overtaken: 0 }
    }

    /// Whether no further request may overtake it: as many more urgent ones did as have a turn in the queue
    /// before one of its class.
    fn is_overdue(&self) -> bool {
        self.overtaken >= self.what.priority().stride()
    }
}

impl Runner {
    /// The next one to be let in, with memory for its prompt and the beginning of its answer. One that finds no room is
    /// deferred; then only more urgent ones are let in before it, and not for ever.
    pub fn next_waiting(&mut self, places: usize) -> Option<(Waiting, Reservation)> {
        loop {
            let overdue = self.held.iter().position(Deferred::is_overdue);
            let first = overdue.or_else(|| {
                let ranked = self.held.iter().enumerate().min_by_key(|(_, held)| held.what.rank());
                ranked.map(|(i, _)| i)
            });
            if let Some(first) = first
                && let Ok(memory) = self.reserve(self.needs_of(&self.held[first].what))
            {
                let first = self.held.remove(first).what;
                self.overtake(first.priority());
                return Some((first, memory));
            }
            if overdue.is_some() {
                return None;
            }
            let blocked = self.held.iter().map(|held| held.what.priority() as usize).min();
            let is_urgent = |p: Priority| blocked.is_none_or(|blocked| (p as usize) < blocked);
            let refuses = self.options.when_full == WhenFull::Refuse;
            let next = self.pop(places, |p| refuses || is_urgent(p))?;
            let urgent = is_urgent(next.request.priority);
            let next = Waiting::New(Box::new(next));
            match self.reserve(self.needs_of(&next)) {
                Ok(memory) if urgent => {
                    self.overtake(next.priority());
                    return Some((next, memory));
                }
                Ok(_) => self.defer(next, 0),
                Err(free) => self.defer(next, free),
            }
        }
    }

    /// Counts that one of this class is let in before less urgent ones that are held back.
    fn overtake(&mut self, by: Priority) {
        let less_urgent = |held: &&mut Deferred| held.what.priority() as usize > by as usize;
        self.held.iter_mut().filter(less_urgent).for_each(|held| held.overtaken += 1);
    }

    fn pop(&mut self, places: usize, may: impl Fn(Priority) -> bool) -> Option<Submission> {
        let background = |s: &&Sequence| s.request.priority == Priority::Background;
        let background = self.running.iter().filter(background).count();
        // Long background work must leave a place for other requests.
        let has_place = |p| p != Priority::Background || background < (places - 1).max(1);
        self.queue.pop(|p| may(p) && has_place(p))
    }

    /// Holds back one that does not fit now until it does, or refuses it.
    fn defer(&mut self, what: Waiting, free: usize) {
        match (what, self.options.when_full) {
            (Waiting::New(mut submission), WhenFull::Refuse) => {
                let needs = self.first_needs(&submission.request.prompt, &submission.request);
                submission.emit(Event::Failed(RequestError::MemoryFull { needs, free }));
            }
            (what, _) => self.held.push(Deferred::new(what)),
        }
    }

    /// Bytes that it needs to begin.
    fn needs_of(&self, what: &Waiting) -> usize {
        match what {
            Waiting::New(submission) => self.first_needs(&submission.request.prompt, &submission.request),
            Waiting::Paused(sequence) => self.first_needs(&sequence.tokens, &sequence.request),
        }
    }

    /// # Errors
    /// There is no room; holds the number of free bytes.
    fn reserve(&mut self, needs: usize) -> Result<Reservation, usize> {
        let class = MemoryClass::Sequences;
        let limit = self.info.memory.limit;
        match self.options.metrics.account.reserve(class, needs, limit) {
            // Sequences that ended hold memory until their state is stored.
            Err(_) if !self.ended.is_empty() => {
                self.keep_all_ended();
                self.options.metrics.account.reserve(class, needs, limit)
            }
            reserved => reserved,
        }
    }

    fn first_needs(&self, tokens: &[u32], request: &Request) -> usize {
        self.info.memory.needs_of(request, self.first_tokens(tokens, request))
    }

    /// Tokens that one with these known tokens needs room for to go on.
    pub fn first_tokens(&self, tokens: &[u32], request: &Request) -> usize {
        let most = request.prompt.len().saturating_add(request.max_tokens).min(self.info.context_length);
        (tokens.len() + SLICE).min(most)
    }

    /// Gives running sequences room for what they are about to compute. Where there is none, the least urgent and youngest
    /// ones are paused until there is; their state is computed again then, and their answers are the same.
    pub fn grow(&mut self) {
        let growing = self.running.iter().filter(|s| s.needs_room(AHEAD));
        let mut order: Vec<(usize, u64)> = growing.map(|s| (s.request.priority as usize, s.id)).collect();
        order.sort_unstable();
        for (_, id) in order {
            while let Some(s) = self.running.iter_mut().find(|s| s.id == id) {
                if !s.needs_room(AHEAD) {
                    break;
                }
                let tokens = (s.tokens.len() + s.unread + SLICE).min(s.most_tokens());
                let needs = self.info.memory.needs_of(&s.request, tokens);
                if s.memory.resize(needs, self.info.memory.limit).is_ok() {
                    s.room = tokens;
                    break;
                }
                self.pause_last();
            }
        }
    }

    /// Pauses the least urgent sequence, of those the youngest.
    fn pause_last(&mut self) {
        // May end some.
        self.collect_launched(&[]);
        let last = |(_, s): &(usize, &Sequence)| (s.request.priority as usize, s.id);
        let Some((at, _)) = self.running.iter().enumerate().max_by_key(last) else { return };
        let mut sequence = self.running.remove(at);
        self.release(&mut sequence.speculation);
        self.options.metrics.preemptions.add(1);
        tracing::info!(sequence = sequence.id, "paused: its memory is needed for others");
        let (model, info) = (&*self.model, &self.info);
        match contained(|| sequence.reset(model, info)) {
            Ok(()) => {
                // Less always fits.
                _ = sequence.memory.resize(0, None);
                self.held.push(Deferred::new(Waiting::Paused(Box::new(sequence))));
            }
            Err(message) => self.end(sequence, End::Failed(failure(message))),
        }
    }

    /// Lets the cache of past sequences have what all running ones and other engines' caches leave. Half of it: what is
    /// copied and what is stored are there at the same time.
    pub fn share_room(&mut self) {
        let Some(limit) = self.info.memory.limit else { return };
        let account = &self.options.metrics.account;
        let own = self.cache_memory.as_ref().map_or(0, Reservation::bytes);
        let others = account.promised() + account.bytes(MemoryClass::PrefixCache).saturating_sub(own);
        self.prefix.set_budget(limit.saturating_sub(others) / 2);
    }

    /// Makes sure that what is there is within the limit, where estimates were wrong: what is kept of past sequences goes
    /// first.
    ///
    /// # Errors
    /// It is not, whatever goes.
    pub fn check_memory(&mut self) -> Result<(), String> {
        let Some(limit) = self.info.memory.limit else { return Ok(()) };
        if mlx::active_memory() <= limit {
            return Ok(());
        }
        // What is being computed holds memory that the next step will not find taken.
        self.collect_launched(&[]);
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
