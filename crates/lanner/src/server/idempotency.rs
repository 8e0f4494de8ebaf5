//! Idempotency keys: answers stored for a while under a key of the client, so that a request sent
//! again gets the same answer. Knows no request or response format.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::generate::{ChoiceEvent, Reason, Token};

/// Bytes that a key costs besides its answer.
const OVERHEAD: usize = 512;
/// One answer may take this part of the budget, as a divisor.
const MAX_SHARE: usize = 8;

/// A whole answer: the events of all choices in order.
#[derive(Debug)]
pub(super) struct Recording {
    pub id: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    pub events: Vec<(usize, ChoiceEvent)>,
}

/// Identifies a request by its content.
#[derive(Clone, Debug, PartialEq)]
pub struct Fingerprint(pub [u8; 32]);

/// What a request with a key does.
#[derive(Debug)]
pub(super) enum Claim {
    /// Generates, and records the answer.
    New(Recorder),
    Replay(Arc<Recording>),
}

/// The key was used for another request.
#[derive(Debug)]
pub(super) struct KeyReused;

/// All recordings, finished or not, within `budget` bytes; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct IdempotencyStore {
    budget: usize,
    state: Arc<Mutex<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    entries: HashMap<String, Entry>,
    /// When stored answers expire, soonest first.
    ends: BTreeSet<(Instant, String)>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    fingerprint: Fingerprint,
    state: EntryState,
}

#[derive(Debug)]
enum EntryState {
    /// The receiver gets the recording, or the sender is dropped without one.
    Running(watch::Receiver<Option<Arc<Recording>>>),
    Stored {
        recording: Arc<Recording>,
        bytes: usize,
    },
}

enum Lookup {
    Claim(Claim),
    Running(watch::Receiver<Option<Arc<Recording>>>),
}

impl IdempotencyStore {
    pub(super) fn new(budget: usize) -> IdempotencyStore {
        IdempotencyStore { budget, state: Arc::default() }
    }

    /// Waits while another request with the key runs. If that fails or is cancelled, one of the
    /// waiting requests gets [`Claim::New`]. `ttl` is how long the whole answer is stored.
    ///
    /// # Errors
    /// The key was used with another fingerprint.
    pub(super) async fn claim(
        &self,
        key: &str,
        fingerprint: Fingerprint,
        ttl: Duration,
    ) -> Result<Claim, KeyReused> {
        loop {
            let mut running = match self.find(key, &fingerprint, ttl, Instant::now())? {
                Lookup::Claim(claim) => return Ok(claim),
                Lookup::Running(receiver) => receiver,
            };
            if let Ok(recording) = running.wait_for(Option::is_some).await
                && let Some(recording) = &*recording
            {
                return Ok(Claim::Replay(recording.clone()));
            }
        }
    }

    fn find(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        ttl: Duration,
        now: Instant,
    ) -> Result<Lookup, KeyReused> {
        let mut state = self.lock();
        state.drop_expired(now);
        match state.entries.get(key) {
            Some(entry) if entry.fingerprint != *fingerprint => Err(KeyReused),
            Some(Entry { state: EntryState::Stored { recording, .. }, .. }) => {
                Ok(Lookup::Claim(Claim::Replay(recording.clone())))
            }
            Some(Entry { state: EntryState::Running(receiver), .. }) => Ok(Lookup::Running(receiver.clone())),
            None => {
                let (sender, receiver) = watch::channel(None);
                let running =
                    Entry { fingerprint: fingerprint.clone(), state: EntryState::Running(receiver) };
                state.entries.insert(key.to_owned(), running);
                let recorder =
                    Recorder { store: self.clone(), key: key.into(), ttl, sender, events: vec![], bytes: 0 };
                Ok(Lookup::Claim(Claim::New(recorder)))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn drop_expired(&mut self, now: Instant) {
        while self.ends.first().is_some_and(|(end, _)| *end <= now) {
            self.drop_first();
        }
    }

    /// Drops the answer that expires soonest.
    fn drop_first(&mut self) {
        let Some((_, key)) = self.ends.pop_first() else { return };
        if let Some(Entry { state: EntryState::Stored { bytes, .. }, .. }) = self.entries.remove(&key) {
            self.bytes -= bytes;
        }
    }

    /// Reserves bytes and drops answers for them; `false` if they do not fit.
    fn reserve(&mut self, bytes: usize, budget: usize) -> bool {
        while self.bytes + bytes > budget && !self.ends.is_empty() {
            self.drop_first();
        }
        let fits = self.bytes + bytes <= budget;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

/// Records an answer; dropped before the end, it stores nothing.
#[derive(Debug)]
pub(super) struct Recorder {
    store: IdempotencyStore,
    key: String,
    ttl: Duration,
    sender: watch::Sender<Option<Arc<Recording>>>,
    events: Vec<(usize, ChoiceEvent)>,
    /// Reserved so far.
    bytes: usize,
}

impl Recorder {
    /// `None` if the answer will not be stored: a choice was cancelled, or it does not fit.
    pub(super) fn push(mut self, choice: usize, event: &ChoiceEvent) -> Option<Recorder> {
        // A replay computes no prompt.
        if matches!(event, ChoiceEvent::PromptProgress { .. }) {
            return Some(self);
        }
        let bytes = size(event) + if self.events.is_empty() { OVERHEAD + self.key.len() } else { 0 };
        let cancelled = matches!(event, ChoiceEvent::Finished(finish) if finish.reason == Reason::Cancelled);
        let budget = self.store.budget;
        let too_large = self.bytes + bytes > budget / MAX_SHARE;
        if cancelled || too_large || !self.store.lock().reserve(bytes, budget) {
            return None;
        }
        self.bytes += bytes;
        self.events.push((choice, event.clone()));
        Some(self)
    }

    /// Stores the whole answer, and passes it to the waiting requests.
    pub(super) fn finish(self, id: String, created: u64) {
        self.store_at(Instant::now(), id, created);
    }

    fn store_at(mut self, now: Instant, id: String, created: u64) {
        let recording = Arc::new(Recording { id, created, events: std::mem::take(&mut self.events) });
        let mut state = self.store.lock();
        let (end, bytes) = (now + self.ttl, self.bytes);
        if let Some(entry) = state.entries.get_mut(&self.key) {
            entry.state = EntryState::Stored { recording: recording.clone(), bytes };
            state.ends.insert((end, self.key.clone()));
        }
        drop(state);
        self.sender.send_replace(Some(recording));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        let running = |entry: &Entry| matches!(&entry.state, EntryState::Running(receiver) if receiver.same_channel(&self.sender.subscribe()));
        if state.entries.get(&self.key).is_some_and(running) {
            state.entries.remove(&self.key);
            state.bytes -= self.bytes;
        }
    }
}

/// Bytes in memory, without allocator overhead.
fn size(event: &ChoiceEvent) -> usize {
    let scores = |top: usize| top * size_of::<(u32, f32)>();
    let token = |token: &Token| {
        size_of::<Token>() + token.logprobs.as_ref().map_or(0, |logprobs| scores(logprobs.top.len()))
    };
    let tokens = |tokens: &[Token]| tokens.iter().map(token).sum::<usize>();
    let own = match event {
        ChoiceEvent::Prompt(prompt) => {
            let score = |score: &Option<engine::TokenLogprobs>| {
                size_of_val(score) + score.as_ref().map_or(0, |logprobs| scores(logprobs.top.len()))
            };
            prompt.iter().map(score).sum()
        }
        ChoiceEvent::Logits { values, .. } => size_of_val(&values[..]),
        ChoiceEvent::PromptProgress { .. } => 0,
        ChoiceEvent::Text { delta, tokens: all } => {
            let name = match delta {
                chat::Delta::ToolCall { id, name, .. } => id.len() + name.len(),
                _ => 0,
            };
            delta.text().len() + name + tokens(all)
        }
        ChoiceEvent::Finished(finish) => tokens(&finish.tokens),
    };
    size_of::<(usize, ChoiceEvent)>() + own
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use chat::Delta;

    use super::*;
    use crate::generate::{Finish, Timing};

    const TTL: Duration = Duration::from_secs(10);

    fn text(text: &str) -> ChoiceEvent {
        ChoiceEvent::Text { delta: Delta::Content(text.into()), tokens: vec![] }
    }

    fn finished(reason: Reason) -> ChoiceEvent {
        ChoiceEvent::Finished(Finish {
            reason,
            tokens: vec![],
            prompt_tokens: 1,
            completion_tokens: 2,
            cache: engine::CacheReport::default(),
            speculation: vec![],
            lossy: vec![],
            reasoning_tokens: 0,
            cut: None,
            repeated: false,
            stop_string: None,
            end_token: None,
            timing: Timing::default(),
        })
    }

    fn print(byte: u8) -> Fingerprint {
        Fingerprint([byte; 32])
    }

    fn first(store: &IdempotencyStore, key: &str, now: Instant) -> Recorder {
        match store.find(key, &print(0), TTL, now) {
            Ok(Lookup::Claim(Claim::New(recorder))) => recorder,
            _ => panic!("`{key}` is not free"),
        }
    }

    /// The id of the answer stored under a key.
    fn stored(store: &IdempotencyStore, key: &str, now: Instant) -> Option<String> {
        match store.find(key, &print(0), TTL, now).expect("the same request") {
            Lookup::Claim(Claim::Replay(recording)) => Some(recording.id.clone()),
            Lookup::Claim(Claim::New(_)) => None,
            Lookup::Running(_) => panic!("`{key}` is being answered"),
        }
    }

    /// Keys and bytes.
    fn keys_and_bytes(store: &IdempotencyStore) -> (usize, usize) {
        let state = store.lock();
        (state.entries.len(), state.bytes)
    }

    fn keep(store: &IdempotencyStore, key: &str, letters: usize, now: Instant) {
        let recorder = first(store, key, now).push(0, &text(&"x".repeat(letters)));
        if let Some(recorder) = recorder.and_then(|recorder| recorder.push(0, &finished(Reason::Stop))) {
            recorder.store_at(now, key.into(), 7);
        }
    }

    #[test]
    fn stored_answer_expires_after_its_ttl() {
        let (store, now) = (IdempotencyStore::new(1 << 20), Instant::now());
        keep(&store, "a", 5, now);
        let just = Duration::from_nanos(1);
        assert_eq!(stored(&store, "a", now + TTL - just), Some("a".into()));
        assert!(store.find("a", &print(1), TTL, now).is_err(), "another request");
        assert_eq!(stored(&store, "a", now + TTL), None);
        assert_eq!(keys_and_bytes(&store), (0, 0));
        assert!(store.find("a", &print(1), TTL, now + TTL).is_ok(), "the key is free again");
    }

    #[test]
    fn incomplete_or_cancelled_answer_is_not_stored() {
        let (store, now) = (IdempotencyStore::new(1 << 20), Instant::now());
        drop(first(&store, "a", now).push(0, &text("half")));
        assert!(first(&store, "a", now).push(0, &finished(Reason::Cancelled)).is_none());
        assert_eq!(stored(&store, "a", now), None);
        assert_eq!(keys_and_bytes(&store), (0, 0));
    }

    #[test]
    fn budget_evicts_the_answer_that_expires_soonest() {
        let (store, now) = (IdempotencyStore::new(40_000), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        for (key, second) in [("a", 4), ("b", 0), ("c", 5), ("d", 6), ("e", 1), ("f", 3), ("g", 2), ("h", 7)]
        {
            keep(&store, key, 4000, at(second));
        }
        let there = |keys: &str| {
            keys.chars()
                .map(|key| u8::from(stored(&store, &key.to_string(), at(8)).is_some()))
                .collect::<Vec<_>>()
        };
        assert_eq!(there("abcdefgh"), [1; 8]);
        keep(&store, "i", 4000, at(8));
        keep(&store, "j", 4000, at(8));
        assert_eq!(there("abcdefghij"), [1, 0, 1, 1, 0, 1, 1, 1, 1, 1]);
        keep(&store, "k", 6000, at(8));
        assert_eq!(
            there("acdfghijk"),
            [1, 1, 1, 1, 1, 1, 1, 1, 0],
            "an answer that is too large evicts none"
        );
        let state = store.lock();
        let bytes = |entry: &Entry| match entry.state {
            EntryState::Stored { bytes, .. } => bytes,
            EntryState::Running(_) => panic!("nothing runs"),
        };
        assert_eq!(state.bytes, state.entries.values().map(bytes).sum::<usize>());
        assert!(state.bytes <= 40_000 && state.ends.len() == 8);
    }

    #[test]
    fn running_recordings_count_towards_the_budget() {
        let (store, now) = (IdempotencyStore::new(40_000), Instant::now());
        let begin = |i: usize| first(&store, &i.to_string(), now).push(0, &text(&"x".repeat(4000)));
        let running: Vec<_> = (0..12).map(begin).collect();
        assert_eq!(running.iter().flatten().count(), 8);
        drop(running);
        assert_eq!(keys_and_bytes(&store), (0, 0));
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn waiting_request_gets_the_claim_or_the_answer() {
        let (store, now) = (IdempotencyStore::new(1 << 20), Instant::now());
        let failing = first(&store, "a", now);
        let mut waiting = [0; 3].map(|_| Box::pin(store.claim("a", print(0), TTL)));
        assert!(waiting.iter_mut().all(|claim| poll(claim.as_mut()).is_none()));
        drop(failing);
        let Some(Ok(Claim::New(second))) = poll(waiting[1].as_mut()) else { panic!("it is first now") };
        assert!(poll(waiting[0].as_mut()).is_none() && poll(waiting[2].as_mut()).is_none());
        let second = second.push(0, &text("x")).and_then(|second| second.push(0, &finished(Reason::Stop)));
        // It expires at once; waiting requests get it even so.
        second.expect("room").store_at(now - TTL, "id".into(), 7);
        for i in [0, 2] {
            match poll(waiting[i].as_mut()) {
                Some(Ok(Claim::Replay(recording))) => {
                    assert_eq!((&*recording.id, recording.events.len()), ("id", 2))
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
