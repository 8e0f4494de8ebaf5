//! Running generations: engine events in, steps of text out. The server, the chat and `run` all read from here.

use std::{collections::VecDeque, sync::Arc};

use chat::{Decoder, Delta};
use engine::{
    CacheReport, Drafted, Engine, Event, FinishReason, Lossy, Place, Request, RequestError, Ticket,
    TokenLogprobs,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Some choices generating side by side. Dropping it cancels them.
pub struct Generation {
    events: UnboundedReceiver<(usize, Vec<Event>)>,
    choices: Vec<Choice>,
    unfinished: usize,
    ready: VecDeque<Result<(usize, Step), RequestError>>,
}

/// What happened to one choice.
#[derive(Clone, Debug)]
pub enum Step {
    /// The prompt's own log-probabilities, one per token, the first `None`.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// Raw logits that follow `position`.
    Logits { position: usize, values: Vec<f32> },
    /// Text, and the tokens that it completes.
    Text { delta: Delta, tokens: Vec<Token> },
    /// The last step of a choice.
    Finished(Finish),
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
    /// By drafter, of those that drafted anything.
    pub speculation: Vec<Drafted>,
    /// Why the answer may be another than the model's own.
    pub lossy: Vec<Lossy>,
    pub reasoning_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended its turn, or wrote a stop string.
    Stop,
    Length,
    Cancelled,
}

impl Finish {
    /// As if no token had been asked for.
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

struct Choice {
    ticket: Ticket,
    decoder: Decoder,
    /// Tokens whose text is not certain yet.
    held: Vec<Token>,
    generated: usize,
}

impl Generation {
    /// # Errors
    /// The engine is full, or refuses one of the requests; none of them runs then.
    pub fn start(engine: &Engine, requests: Vec<(Request, Decoder)>) -> Result<Generation, RequestError> {
        Generation::start_in(&engine.enter()?, engine, requests)
    }

    /// As [`start`](Generation::start), in a place that was taken before.
    ///
    /// # Errors
    /// The first request that the engine refuses; none of them runs then.
    pub fn start_in(
        place: &Arc<Place>,
        engine: &Engine,
        requests: Vec<(Request, Decoder)>,
    ) -> Result<Generation, RequestError> {
        let (sender, events) = unbounded_channel();
        let submit = |(index, (request, decoder))| {
            let sender = sender.clone();
            let sink = move |events| {
                // Nobody listens once the client has gone; the ticket went with it.
                let _ = sender.send((index, events));
            };
            let ticket = engine.submit_in(place, request, sink)?;
            Ok(Choice { ticket, decoder, held: Vec::new(), generated: 0 })
        };
        let choices: Vec<Choice> = requests.into_iter().enumerate().map(submit).collect::<Result<_, _>>()?;
        Ok(Generation { events, unfinished: choices.len(), choices, ready: VecDeque::new() })
    }

    /// The next step of any choice; `None` when all have finished.
    ///
    /// # Errors
    /// A choice failed. The others are no use to the caller then: drop the generation.
    pub async fn next(&mut self) -> Option<Result<(usize, Step), RequestError>> {
        loop {
            if let Some(next) = self.ready.pop_front() {
                self.unfinished -= usize::from(matches!(next, Ok((_, Step::Finished(_)))));
                return Some(next);
            }
            if self.unfinished == 0 {
                return None;
            }
            let Some((index, events)) = self.events.recv().await else {
                return Some(Err(RequestError::EngineStopped));
            };
            for event in events {
                match self.choices[index].steps(event) {
                    Ok(steps) => self.ready.extend(steps.into_iter().map(|step| Ok((index, step)))),
                    Err(error) => self.ready.push_back(Err(error)),
                }
            }
        }
    }

    /// Ends all choices within one engine step; they still finish, as [`Reason::Cancelled`].
    pub fn cancel(&self) {
        self.choices.iter().for_each(|choice| choice.ticket.cancel());
    }
}

impl Choice {
    fn steps(&mut self, event: Event) -> Result<Vec<Step>, RequestError> {
        match event {
            Event::Prompt(logprobs) => Ok(vec![Step::Prompt(logprobs)]),
            Event::Logits { position, values } => Ok(vec![Step::Logits { position, values }]),
            Event::Token { id, logprobs } => Ok(self.push(id, logprobs)),
            Event::Finished { reason, usage } => Ok(self.finish(reason, usage)),
            Event::Failed(error) => Err(error),
        }
    }

    fn push(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> Vec<Step> {
        // The engine may be a token ahead of the stop string that ended this choice.
        if self.decoder.stopped().is_some() {
            return Vec::new();
        }
        self.generated += 1;
        let before = self.decoder.reasoning_tokens();
        self.held.push(Token { id, reasoning: false, logprobs });
        let deltas = self.decoder.push(id);
        // The decoder may decide late, and then for several tokens at once, that they were reasoning.
        let reasoning = self.decoder.reasoning_tokens() - before;
        self.held.iter_mut().rev().take(reasoning).for_each(|token| token.reasoning = true);
        if self.decoder.stopped().is_some() {
            self.ticket.cancel();
        }
        self.text(deltas)
    }

    /// The first piece takes the tokens: a token that gives two pieces is one marker and its neighbours.
    fn text(&mut self, deltas: Vec<Delta>) -> Vec<Step> {
        let step = |delta| Step::Text { delta, tokens: std::mem::take(&mut self.held) };
        deltas.into_iter().map(step).collect()
    }

    fn finish(&mut self, reason: FinishReason, usage: engine::Usage) -> Vec<Step> {
        let stopped = self.decoder.stopped().is_some();
        let deltas = self.decoder.finish();
        let mut steps = self.text(deltas);
        let mut tokens = std::mem::take(&mut self.held);
        if stopped {
            tokens.iter_mut().for_each(|token| token.logprobs = None);
        }
        steps.push(Step::Finished(Finish {
            reason: match reason {
                _ if stopped => Reason::Stop,
                FinishReason::Eos(_) => Reason::Stop,
                FinishReason::Length => Reason::Length,
                FinishReason::Cancelled => Reason::Cancelled,
            },
            tokens,
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: if stopped { self.generated } else { usage.completion_tokens },
            cache: usage.cache,
            speculation: usage.speculation,
            lossy: usage.lossy,
            reasoning_tokens: self.decoder.reasoning_tokens(),
        }));
        steps
    }
}
