//! The caller's end of a running engine: submit requests, hold tickets; nothing here touches an array.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use crate::request::{Event, ModelInfo, Request, RequestError, Sampling};

/// Receives a request's events on the engine thread; must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// A request on its way to the engine thread.
pub struct Submission {
    pub request: Request,
    pub sink: Sink,
    pub cancelled: Arc<AtomicBool>,
}

impl Submission {
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Hands an event to the caller. A caller that panics has lost its request, nothing more.
    pub fn emit(&mut self, event: Event) {
        let sink = &mut self.sink;
        if catch_unwind(AssertUnwindSafe(|| sink(event))).is_err() {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

/// A running engine. Cheap to clone; the engine thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct Engine {
    info: Arc<ModelInfo>,
    submissions: mpsc::Sender<Submission>,
}

impl Engine {
    pub(crate) fn new(info: ModelInfo, submissions: mpsc::Sender<Submission>) -> Engine {
        Engine { info: Arc::new(info), submissions }
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Queues a request; its events go to `sink` on the engine thread until `Finished` or `Failed`.
    ///
    /// # Errors
    /// A request the model cannot run (empty, too long, unknown ids, parameters out of range), before
    /// any event; or [`RequestError::EngineStopped`].
    pub fn submit(
        &self,
        request: Request,
        sink: impl FnMut(Event) + Send + 'static,
    ) -> Result<Ticket, RequestError> {
        check(&request, &self.info)?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let submission = Submission { request, sink: Box::new(sink), cancelled: cancelled.clone() };
        self.submissions.send(submission).map_err(|_| RequestError::EngineStopped)?;
        Ok(Ticket { cancelled })
    }
}

/// Keeps a request alive: dropping it stops the generation within one step.
#[must_use = "dropping the ticket cancels the request"]
pub struct Ticket {
    cancelled: Arc<AtomicBool>,
}

impl Ticket {
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn check(request: &Request, info: &ModelInfo) -> Result<(), RequestError> {
    if request.prompt.is_empty() {
        return Err(RequestError::EmptyPrompt);
    }
    if request.max_tokens == 0 {
        return Err(RequestError::NoTokensAsked);
    }
    if request.prompt.len() >= info.context_length {
        return Err(RequestError::PromptTooLong {
            prompt: request.prompt.len(),
            context: info.context_length,
        });
    }
    let biased = request.sampling.logit_bias.keys();
    match request.prompt.iter().chain(biased).find(|&&id| id as usize >= info.vocab_size) {
        Some(&id) => Err(RequestError::TokenOutOfRange { id, vocab_size: info.vocab_size }),
        None => check_sampling(&request.sampling),
    }
}

fn check_sampling(s: &Sampling) -> Result<(), RequestError> {
    let finite = |x: f32| x.is_finite();
    let checks = [
        ("temperature", s.temperature, s.temperature >= 0.0 && finite(s.temperature), "0 or more"),
        ("top_p", s.top_p, s.top_p > 0.0 && s.top_p <= 1.0, "above 0 and at most 1"),
        ("min_p", s.min_p, (0.0..=1.0).contains(&s.min_p), "between 0 and 1"),
        (
            "repetition_penalty",
            s.repetition_penalty,
            s.repetition_penalty > 0.0 && finite(s.repetition_penalty),
            "above 0",
        ),
        ("presence_penalty", s.presence_penalty, finite(s.presence_penalty), "a finite number"),
        ("frequency_penalty", s.frequency_penalty, finite(s.frequency_penalty), "a finite number"),
    ];
    let biases = s.logit_bias.values().map(|&b| ("logit_bias", b, !b.is_nan(), "a number"));
    match checks.into_iter().chain(biases).find(|&(_, _, ok, _)| !ok) {
        Some((name, value, _, must)) => Err(RequestError::BadSampling { name, value, must }),
        None => Ok(()),
    }
}
