//! Generations: engine events in, text events out. The server, `chat` and `run` all use them.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use chat::{AnswerLimit, Decoder, Delta, thinking::Cut};
use engine::{
    CacheReport, Drafted, Engine, Event, FinishReason, Lossy, Permit, Request, RequestError, RequestHandle,
    TokenLogprobs,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Choices generated at the same time. Dropping it cancels them.
pub struct Generation {
    events: UnboundedReceiver<(usize, Instant, Vec<Event>)>,
    /// Bytes of events sent by the engine and not yet received.
    unread: Arc<AtomicUsize>,
    choices: Vec<ChoiceState>,
    unfinished: usize,
    ready: VecDeque<Result<(usize, ChoiceEvent), RequestError>>,
}

/// An event of one choice.
#[derive(Clone, Debug)]
pub enum ChoiceEvent {
    /// Prompt tokens that are computed or reused, and how many of them were reused.
    PromptProgress { processed: usize, cached: usize },
    /// Log-probabilities of the prompt's tokens; `None` for the first.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// Raw logits after `position`.
    Logits { position: usize, values: Vec<f32> },
    /// Text, and the tokens that it completes.
    Text { delta: Delta, tokens: Vec<Token> },
    /// The last event of a choice.
    Finished(Finish),
}

impl ChoiceEvent {
    /// The generated tokens that it reports.
    pub fn tokens(&self) -> Option<&[Token]> {
        match self {
            ChoiceEvent::Text { tokens, .. } => Some(tokens),
            ChoiceEvent::Finished(finish) => Some(&finish.tokens),
            ChoiceEvent::PromptProgress { .. } | ChoiceEvent::Prompt(_) | ChoiceEvent::Logits { .. } => None,
        }
    }
}

/// A generated token.
#[derive(Clone, Debug)]
pub struct Token {
    pub id: u32,
    pub reasoning: bool,
    pub logprobs: Option<TokenLogprobs>,
}

#[derive(Clone, Debug)]
pub struct Finish {
    pub reason: Reason,
    /// Tokens at the end that gave no text: control tokens, or those of a stop string.
    pub tokens: Vec<Token>,
    pub prompt_tokens: usize,
    /// Every generated token, the end-of-sequence token included.
    pub completion_tokens: usize,
    pub cache: CacheReport,
    /// By drafter; only those that drafted.
    pub speculation: Vec<Drafted>,
    /// Why the answer may differ from the model's own.
    pub lossy: Vec<Lossy>,
    pub reasoning_tokens: usize,
    /// Why its thinking was cut.
    pub cut: Option<Cut>,
    /// Whether it was ended because it repeated itself.
    pub repeated: bool,
    /// The stop string that ended the answer.
    pub stop_string: Option<String>,
    /// The token that ended the answer, which gives no text.
    pub end_token: Option<u32>,
    pub timing: Timing,
}

/// The time that a choice took, as the engine's thread saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// In the queue.
    pub waiting: Duration,
    /// From the start to the first token.
    pub prompt: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended its turn, or wrote a stop string.
    Stop,
    /// The model ended its turn after at least one complete tool call.
    ToolCalls,
    Length,
    Cancelled,
}

impl Finish {
    /// Without the generated tokens.
    pub fn prompt_only(self) -> Finish {
        Finish {
            reason: Reason::Length,
            tokens: Vec::new(),
            completion_tokens: 0,
            reasoning_tokens: 0,
            ..self
        }
    }
}

struct ChoiceState {
    handle: Arc<RequestHandle>,
    decoder: Decoder,
    /// Tokens whose text is not decided yet.
    pending: Vec<Token>,
    generated: usize,
    clock: ChoiceClock,
}

impl Timing {
    /// Adds the times of what came after.
    pub fn add(&mut self, other: &Timing) {
        self.waiting += other.waiting;
        self.prompt += other.prompt;
        self.decode += other.decode;
    }

    /// Extends each time to the longer one.
    pub fn extend(&mut self, other: &Timing) {
        self.waiting = self.waiting.max(other.waiting);
        self.prompt = self.prompt.max(other.prompt);
        self.decode = self.decode.max(other.decode);
    }
}

/// When a choice reached each stage.
struct ChoiceClock {
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl Generation {
    /// # Errors
    /// The engine is full, or refuses one of the requests; none of them runs then.
    pub fn start(engine: &Engine, requests: Vec<(Request, Decoder)>) -> Result<Generation, RequestError> {
        Generation::start_in(&engine.acquire()?, engine, requests, usize::MAX)
    }

    /// [`start`](Generation::start) with a permit that was acquired before. A choice fails if it
    /// sends an event while `most_unread` bytes or more are unread.
    ///
    /// # Errors
    /// The first request that the engine refuses; none of them runs then.
    pub fn start_in(
        permit: &Arc<Permit>,
        engine: &Engine,
        requests: Vec<(Request, Decoder)>,
        most_unread: usize,
    ) -> Result<Generation, RequestError> {
        let (sender, events) = unbounded_channel();
        let unread: Arc<AtomicUsize> = Arc::default();
        let submit = |(index, (request, decoder))| {
            let (sender, unread, own) = (sender.clone(), unread.clone(), Arc::new(OnceLock::new()));
            let known: Arc<OnceLock<Weak<RequestHandle>>> = own.clone();
            let sink = move |mut events: Vec<Event>| {
                let bytes = unread.fetch_add(size(&events), Ordering::Relaxed);
                let handle = || known.get().and_then(Weak::upgrade);
                if let Some(handle) = (bytes >= most_unread).then(handle).flatten() {
                    handle.cancel();
                    events = vec![Event::Failed(RequestError::Unread { bytes })];
                }
                // Fails if the generation was dropped, and its handle with it.
                let _ = sender.send((index, Instant::now(), events));
            };
            let handle = Arc::new(engine.submit_with(permit, request, sink)?);
            let _ = own.set(Arc::downgrade(&handle));
            Ok(ChoiceState { handle, decoder, pending: Vec::new(), generated: 0, clock: ChoiceClock::new() })
        };
        let choices: Vec<ChoiceState> =
            requests.into_iter().enumerate().map(submit).collect::<Result<_, _>>()?;
        Ok(Generation { events, unread, unfinished: choices.len(), choices, ready: VecDeque::new() })
    }

    /// The next event of any choice; `None` when all have finished.
    ///
    /// # Errors
    /// A choice failed; drop the generation, which cancels the others.
    pub async fn next(&mut self) -> Option<Result<(usize, ChoiceEvent), RequestError>> {
        loop {
            if let Some(next) = self.ready.pop_front() {
                self.unfinished -= usize::from(matches!(next, Ok((_, ChoiceEvent::Finished(_)))));
                return Some(next);
            }
            if self.unfinished == 0 {
                return None;
            }
            let Some((index, at, events)) = self.events.recv().await else {
                return Some(Err(RequestError::EngineStopped));
            };
            self.unread.fetch_sub(size(&events), Ordering::Relaxed);
            for event in events {
                match self.choices[index].on_event(event, at) {
                    Ok(events) => self.ready.extend(events.into_iter().map(|event| Ok((index, event)))),
                    Err(error) => self.ready.push_back(Err(error)),
                }
            }
        }
    }

    /// Cancels all choices within one engine step; they still finish, with [`Reason::Cancelled`].
    pub fn cancel(&self) {
        self.canceller().cancel();
    }

    /// Cancels the choices from elsewhere.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.choices.iter().map(|choice| choice.handle.clone()).collect())
    }
}

/// Cancels a generation, as [`Generation::cancel`] does.
pub struct Canceller(Vec<Arc<RequestHandle>>);

impl Canceller {
    pub fn cancel(&self) {
        self.0.iter().for_each(|handle| handle.cancel());
    }
}

impl ChoiceClock {
    fn new() -> ChoiceClock {
        ChoiceClock { submitted: Instant::now(), started: None, first_token: None }
    }

    fn record(&mut self, event: &Event, at: Instant) {
        match event {
            Event::PromptProgress { .. } => self.started = self.started.or(Some(at)),
            Event::Token { .. } => self.first_token = self.first_token.or(Some(at)),
            _ => {}
        }
    }

    fn timing(&self, ended: Instant) -> Timing {
        let started = self.started.unwrap_or(self.submitted);
        let first_token = self.first_token.unwrap_or(ended);
        Timing {
            waiting: started.saturating_duration_since(self.submitted),
            prompt: first_token.saturating_duration_since(started),
            decode: ended.saturating_duration_since(first_token),
        }
    }
}

/// Bytes in memory, without allocator overhead.
fn size(events: &[Event]) -> usize {
    let scores = |scores: &TokenLogprobs| size_of::<TokenLogprobs>() + size_of_val(&scores.top[..]);
    let own = |event: &Event| match event {
        Event::Token { logprobs, .. } => logprobs.as_ref().map_or(0, scores),
        Event::Prompt(prompt) => prompt.iter().flatten().map(scores).sum(),
        Event::Logits { values, .. } | Event::Embedding(values) => size_of_val(&values[..]),
        Event::PromptProgress { .. } | Event::Finished { .. } | Event::Failed(_) => 0,
    };
    events.iter().map(|event| size_of::<Event>() + own(event)).sum()
}

impl ChoiceState {
    fn on_event(&mut self, event: Event, at: Instant) -> Result<Vec<ChoiceEvent>, RequestError> {
        self.clock.record(&event, at);
        match event {
            Event::PromptProgress { processed, cached } => {
                Ok(vec![ChoiceEvent::PromptProgress { processed, cached }])
            }
            Event::Prompt(logprobs) => Ok(vec![ChoiceEvent::Prompt(logprobs)]),
            Event::Logits { position, values } => Ok(vec![ChoiceEvent::Logits { position, values }]),
            Event::Token { id, logprobs } => Ok(self.push(id, logprobs)),
            // No generation asks for one.
            Event::Embedding(_) => Ok(Vec::new()),
            Event::Finished { reason, usage } => Ok(self.finish(reason, usage, at)),
            Event::Failed(error) => Err(error),
        }
    }

    fn push(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> Vec<ChoiceEvent> {
        // The engine may have generated tokens after the stop string or the limit.
        if self.has_ended() {
            return Vec::new();
        }
        self.generated += 1;
        let before = self.decoder.reasoning_tokens();
        self.pending.push(Token { id, reasoning: false, logprobs });
        let deltas = self.decoder.push(id);
        // The decoder may find out later that several tokens were reasoning.
        let reasoning = self.decoder.reasoning_tokens() - before;
        self.pending.iter_mut().rev().take(reasoning).for_each(|token| token.reasoning = true);
        if self.has_ended() {
            self.handle.cancel();
        }
        self.text(deltas)
    }

    /// Whether a stop string or a limit of its own has ended it.
    fn has_ended(&self) -> bool {
        self.decoder.stopped().is_some() || self.decoder.limited().is_some()
    }

    /// The first delta gets the tokens: a token with two deltas is a marker and its neighbours.
    fn text(&mut self, deltas: Vec<Delta>) -> Vec<ChoiceEvent> {
        let event = |delta| ChoiceEvent::Text { delta, tokens: std::mem::take(&mut self.pending) };
        deltas.into_iter().map(event).collect()
    }

    fn finish(&mut self, reason: FinishReason, usage: engine::Usage, at: Instant) -> Vec<ChoiceEvent> {
        let deltas = self.decoder.finish();
        // Text that was pending may end in a stop string too.
        let stopped = self.decoder.stopped().is_some();
        let limited = self.decoder.limited().filter(|_| !stopped);
        let ended = stopped || (limited.is_none() && matches!(reason, FinishReason::Eos(_)));
        let mut events = self.text(deltas);
        let mut tokens = std::mem::take(&mut self.pending);
        if stopped {
            tokens.iter_mut().for_each(|token| token.logprobs = None);
        }
        events.push(ChoiceEvent::Finished(Finish {
            reason: match reason {
                _ if ended && self.decoder.tool_calls() > 0 => Reason::ToolCalls,
                _ if stopped => Reason::Stop,
                _ if limited.is_some() => Reason::Length,
                FinishReason::Eos(_) => Reason::Stop,
                FinishReason::Length => Reason::Length,
                FinishReason::Cancelled => Reason::Cancelled,
            },
            tokens,
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: match stopped || limited.is_some() {
                true => self.generated,
                false => usage.completion_tokens,
            },
            cache: usage.cache,
            speculation: usage.speculation,
            lossy: usage.lossy,
            reasoning_tokens: self.decoder.reasoning_tokens(),
            cut: self.decoder.thinking().and_then(|thinking| thinking.cut()),
            repeated: limited == Some(AnswerLimit::Repetition),
            stop_string: self.decoder.stopped().map(str::to_owned),
            end_token: match reason {
                FinishReason::Eos(id) if ended && !stopped => Some(id),
                _ => None,
            },
            timing: self.clock.timing(at),
        }));
        events
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use chat::{DecodeOptions, Tokenizer};
    use engine::{Memory, ModelInfo, Sampling, WeightSummary, scripted};
    use tokio::runtime::Builder;

    use super::*;
    use crate::builtin::BUILTIN;

    const MOST: usize = 100_000;

    fn info() -> ModelInfo {
        ModelInfo {
            model_type: "scripted".into(),
            vocab_size: 260,
            context_length: 1 << 20,
            is_encoder: false,
            vision: engine::Vision::None,
            eos_ids: vec![],
            drafters: vec![],
            speculate: engine::Speculate::Off,
            default_sampling: Sampling::default(),
            weight_bytes: 0,
            weights: WeightSummary::default(),
            memory: Memory::default(),
        }
    }

    #[test]
    fn unread_answer_is_cancelled_before_it_fills_memory() {
        let engine =
            scripted::scripted(info(), 8, Duration::ZERO, |_: &Request, _| scripted::Step::Token(65));
        let tokenizer = Tokenizer::from_bytes(BUILTIN.tokenizer.as_bytes(), None).unwrap();
        let decoder = Decoder::new(Arc::new(tokenizer), DecodeOptions::default()).unwrap();
        let requests = vec![(Request::new(vec![1], 1 << 19), decoder)];
        let mut generation =
            Generation::start_in(&engine.acquire().unwrap(), &engine, requests, MOST).unwrap();
        while engine.acquire().is_ok_and(|_| generation.unread.load(Ordering::Relaxed) < MOST) {
            thread::sleep(Duration::from_millis(1));
        }
        let runtime = Builder::new_current_thread().build().unwrap();
        let mut tokens = 0;
        let error = loop {
            match runtime.block_on(generation.next()).unwrap() {
                Ok((_, ChoiceEvent::Text { tokens: more, .. })) => tokens += more.len(),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, RequestError::Unread { bytes } if bytes >= MOST), "{error}");
        assert!(tokens < 1 << 18, "{tokens} of half a million were generated");
        assert!(error.to_string().contains("MB of the answer wait to be read"), "{error}");
    }
}
