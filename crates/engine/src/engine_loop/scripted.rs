//! An engine without a model, for tests of the layers above: a closure decides every token.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{
    admission::Admission,
    handle::{Engine, Message},
    heartbeat::Heartbeat,
    submission::Submission,
};
use crate::{
    api::{
        CacheReport, CacheStats, ConstraintState, Event, FinishReason, ModelInfo, Pooling, Request,
        RequestError, TokenLogprobs, Usage,
    },
    speculate::StepTimes,
};

/// Result of one scripted step.
pub enum Step {
    /// The next token.
    Token(u32),
    /// Fail the request as a panicking step would.
    Fail(String),
}

/// Starts an engine whose `n`-th token of a request is `script(&request, n)`, one every `delay`.
///
/// Tokens that the request's constraint forces come between those of the script; once the script
/// leaves the constraint, it is alone.
/// End-of-sequence ids, `max_tokens`, deadlines, cancellation and usage behave as in the real
/// engine; requests run one thread each, `permits` at most. Log-probabilities are fixed: -0.5 for
/// the token, and its successors in `top`. Embeddings have eight numbers.
pub fn scripted(
    info: ModelInfo,
    permits: usize,
    delay: Duration,
    script: impl Fn(&Request, usize) -> Step + Clone + Send + 'static,
) -> Engine {
    let (sender, messages) = mpsc::channel();
    let given = info.clone();
    let heartbeat = Arc::new(Heartbeat::new(Duration::from_secs(60)));
    let beats = heartbeat.clone();
    let thread = thread::spawn(move || {
        for message in messages {
            let submission = match message {
                Message::Submit(submission) => *submission,
                // The caller may be gone.
                Message::CacheStats(answer) | Message::ClearCache(answer) => {
                    let _ = answer.send(CacheStats::default());
                    continue;
                }
                Message::CalibrationText(_) | Message::MemoryChanged => continue,
                Message::StepTimes(answer) => {
                    let _ = answer.send(StepTimes::default());
                    continue;
                }
                Message::Stop => return beats.ended(),
            };
            let (info, script) = (given.clone(), script.clone());
            thread::spawn(move || run(submission, &info, delay, script));
        }
    });
    Engine::new(info, Admission::new(permits, 0), Arc::default(), heartbeat, sender, thread)
}

/// An engine whose thread hangs in its first step until the engine is dropped.
pub fn stuck(info: ModelInfo) -> Engine {
    let (sender, messages) = mpsc::channel();
    let heartbeat = Arc::new(Heartbeat::new(Duration::ZERO));
    heartbeat.working();
    let stop = |message: &Message| matches!(message, Message::Stop);
    // Requests are kept, as a hanging engine would.
    let thread =
        thread::spawn(move || drop(messages.into_iter().take_while(|m| !stop(m)).collect::<Vec<_>>()));
    Engine::new(info, Admission::new(1, 0), Arc::default(), heartbeat, sender, thread)
}

/// The hidden state of a token is a vector of eight numbers: 1 at the index `id % 8`, else 0.
fn embed(mut submission: Submission, pooling: Pooling) {
    let prompt = submission.request.prompt.clone();
    let tokens = match pooling {
        Pooling::Last => &prompt[prompt.len() - 1..],
        Pooling::Mean => &prompt[..],
    };
    let mut embedding = vec![0.0; 8];
    tokens.iter().for_each(|&id| embedding[id as usize % 8] += 1.0 / tokens.len() as f32);
    submission.send(Event::Embedding(embedding));
    let usage = Usage { prompt_tokens: prompt.len(), ..Usage::default() };
    submission.send(Event::Finished { reason: FinishReason::Length, usage });
}

/// The tokens of an answer: those of the script, and forced ones between them.
struct ScriptedTokens {
    /// `None`: there is none, or the script left it.
    constraint: Option<Box<dyn ConstraintState>>,
    /// Tokens of the script that have come.
    scripted: usize,
    /// The next one, if forced tokens come before it.
    next: Option<u32>,
}

impl ScriptedTokens {
    fn step(&mut self, script: impl Fn(usize) -> Step) -> Step {
        let next = match self.next.take().map_or_else(|| script(self.scripted), Step::Token) {
            Step::Token(id) => id,
            fail @ Step::Fail(_) => return fail,
        };
        let forced = self.constraint.as_mut().and_then(|state| state.forced(1).ok()?.first().copied());
        let id = forced.unwrap_or(next);
        if id == next {
            self.scripted += 1;
        } else {
            self.next = Some(next);
        }
        self.constraint.take_if(|state| state.push(id) != Ok(true));
        Step::Token(id)
    }
}

fn run(
    mut submission: Submission,
    info: &ModelInfo,
    delay: Duration,
    script: impl Fn(&Request, usize) -> Step,
) {
    let request = submission.request.clone();
    submission.meter.admitted();
    submission.meter.started(request.prompt.len(), &CacheReport::default());
    if request.prompt_progress {
        submission.send(Event::PromptProgress { processed: 0, cached: 0 });
    }
    let logprobs = |id: u32| {
        let top = |n| (0..n as u32).map(|i| (id + i, -0.5 - i as f32)).collect();
        request.logprobs.map(|n| TokenLogprobs { id, logprob: -0.5, top: top(n) })
    };
    if request.prompt_logprobs {
        let rest = request.prompt.iter().skip(1).map(|&id| logprobs(id));
        submission.send(Event::Prompt(std::iter::once(None).chain(rest).collect()));
    }
    if let Some(pooling) = request.pooling {
        return embed(submission, pooling);
    }
    let limit = request.max_tokens.min(info.context_length - request.prompt.len());
    let mut usage = Usage { prompt_tokens: request.prompt.len(), ..Usage::default() };
    let constraint = request.constraint.as_ref().map(|constraint| constraint.start());
    let mut tokens = ScriptedTokens { constraint, scripted: 0, next: None };
    let reason = loop {
        if submission.is_cancelled() {
            break FinishReason::Cancelled;
        }
        if request.is_late(Instant::now()) {
            return submission.send(Event::Failed(RequestError::TimeIsUp));
        }
        if usage.completion_tokens == limit {
            break FinishReason::Length;
        }
        thread::sleep(delay);
        let id = match tokens.step(|n| script(&request, n)) {
            Step::Token(id) => id,
            Step::Fail(message) => return submission.send(Event::Failed(RequestError::Step(message))),
        };
        usage.completion_tokens += 1;
        let is_eos = info.eos_ids.contains(&id) && !request.ignore_eos;
        if is_eos || request.stop_token_ids.contains(&id) {
            break FinishReason::Eos(id);
        }
        submission.send(Event::Token { id, logprobs: logprobs(id) });
    };
    submission.send(Event::Finished { reason, usage });
}
