//! An engine without a model, for tests of what stands above it: a closure decides every token.

use std::{
    sync::{atomic::Ordering, mpsc},
    thread,
    time::Duration,
};

use crate::{
    handle::{Engine, Message, Submission},
    request::{CacheStats, Event, FinishReason, ModelInfo, Request, RequestError, TokenLogprobs, Usage},
};

/// What the script says at one step.
pub enum Step {
    Token(u32),
    /// Fail the request as a panicking step would.
    Fail(String),
}

/// Starts an engine whose `n`-th token of a request is `script(&request, n)`, one every `delay`.
///
/// End-of-sequence ids, `max_tokens`, cancellation and usage behave as in the real engine; requests run one
/// thread each. Log-probabilities are fixed: -0.5 for the token, and its successors in `top`.
pub fn scripted(
    info: ModelInfo,
    delay: Duration,
    script: impl Fn(&Request, usize) -> Step + Clone + Send + 'static,
) -> Engine {
    let (sender, messages) = mpsc::channel();
    let given = info.clone();
    let thread = thread::spawn(move || {
        for message in messages {
            let submission = match message {
                Message::Submit(submission) => submission,
                // Nobody may be waiting any more.
                Message::CacheStats(answer) | Message::ClearCache(answer) => {
                    let _ = answer.send(CacheStats::default());
                    continue;
                }
                Message::Stop => return,
            };
            let (info, script) = (given.clone(), script.clone());
            thread::spawn(move || run(submission, &info, delay, script));
        }
    });
    Engine::new(info, sender, thread)
}

fn run(
    mut submission: Submission,
    info: &ModelInfo,
    delay: Duration,
    script: impl Fn(&Request, usize) -> Step,
) {
    let request = submission.request.clone();
    let mut emit = |event| (submission.sink)(event);
    let logprobs = |id: u32| {
        let top = |n| (0..n as u32).map(|i| (id + i, -0.5 - i as f32)).collect();
        request.logprobs.map(|n| TokenLogprobs { id, logprob: -0.5, top: top(n) })
    };
    if request.prompt_logprobs {
        let rest = request.prompt.iter().skip(1).map(|&id| logprobs(id));
        emit(Event::Prompt(std::iter::once(None).chain(rest).collect()));
    }
    let limit = request.max_tokens.min(info.context_length - request.prompt.len());
    let mut usage = Usage { prompt_tokens: request.prompt.len(), ..Usage::default() };
    let reason = loop {
        if submission.cancelled.load(Ordering::Relaxed) {
            break FinishReason::Cancelled;
        }
        if usage.completion_tokens == limit {
            break FinishReason::Length;
        }
        thread::sleep(delay);
        let id = match script(&request, usage.completion_tokens) {
            Step::Token(id) => id,
            Step::Fail(message) => return emit(Event::Failed(RequestError::Step(message))),
        };
        usage.completion_tokens += 1;
        if info.eos_ids.contains(&id) && !request.ignore_eos {
            break FinishReason::Eos(id);
        }
        emit(Event::Token { id, logprobs: logprobs(id) });
    };
    emit(Event::Finished { reason, usage });
}
