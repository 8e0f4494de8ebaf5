//! The caller's side of a running engine: submits and cancels requests; holds no arrays.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle, ThreadId},
};

use super::{
    admission::{Admission, Permit},
    heartbeat::{Health, Heartbeat},
    meter::Meter,
    submission::Submission,
};
use crate::{
    api::{
        CacheStats, Event, MAX_DEPTH, Metrics, ModelInfo, Pooling, Request, RequestError, Speculate, Vision,
        sampling,
    },
    speculate::{LAYER_SKIP, StepTimes},
};

/// A message to the engine thread.
pub(crate) enum Message {
    Submit(Box<Submission>),
    CacheStats(mpsc::Sender<CacheStats>),
    /// Empties the prefix cache; answered with its statistics before.
    ClearCache(mpsc::Sender<CacheStats>),
    /// Tokens of a short text, for drafters that are measured on one.
    CalibrationText(Vec<u32>),
    StepTimes(mpsc::Sender<StepTimes>),
    /// Another engine reserved or freed memory.
    MemoryChanged,
    /// Cancels everything and ends the thread.
    Stop,
}

/// A running engine. Cheap to clone; dropping the last clone stops it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    info: ModelInfo,
    messages: mpsc::Sender<Message>,
    /// Locked while a caller of `stop` joins the thread, so that others wait too.
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    heartbeat: Arc<Heartbeat>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn stop(&self) {
        let _ = self.messages.send(Message::Stop);
        // A sink may drop the last engine on the engine's own thread, which cannot join itself.
        if thread::current().id() == self.thread_id {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

impl Engine {
    pub(crate) fn new(
        info: ModelInfo,
        admission: Arc<Admission>,
        metrics: Arc<Metrics>,
        heartbeat: Arc<Heartbeat>,
        messages: mpsc::Sender<Message>,
        thread: JoinHandle<()>,
    ) -> Engine {
        let thread_id = thread.thread().id();
        Engine {
            shared: Arc::new(Shared {
                info,
                messages,
                thread: Mutex::new(Some(thread)),
                thread_id,
                admission,
                metrics,
                heartbeat,
            }),
        }
    }

    /// Cancels every request and waits until the engine's thread has ended and freed the model: at
    /// most for the rest of the current step.
    ///
    /// A program that exits while MLX computes crashes in MLX's destructors: call this, or drop
    /// every clone, first.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// The loaded model.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// The counts of this engine and those that share its metrics. Never blocks, and stays valid
    /// after the engine stops.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
    }

    /// Whether the engine's thread makes progress. Never blocks.
    pub fn health(&self) -> Health {
        self.shared.heartbeat.health()
    }

    /// A permit for a request, or for several that belong together, such as the choices of one
    /// answer.
    ///
    /// # Errors
    /// [`RequestError::QueueFull`].
    pub fn acquire(&self) -> Result<Arc<Permit>, RequestError> {
        self.shared.admission.acquire()
    }

    /// [Acquires](Engine::acquire) a permit and [queues](Engine::submit_with) a request; events
    /// come one by one.
    ///
    /// # Errors
    /// Those of both.
    pub fn submit(
        &self,
        request: Request,
        mut sink: impl FnMut(Event) + Send + 'static,
    ) -> Result<RequestHandle, RequestError> {
        self.submit_with(&self.acquire()?, request, move |events| events.into_iter().for_each(&mut sink))
    }

    /// Queues a request; its events, those of a step together, go to `sink` on the engine thread
    /// until `Finished` or `Failed`.
    ///
    /// # Errors
    /// A request the model cannot run (empty, too long, unknown ids, parameters out of range),
    /// before any event; [`RequestError::QueueFull`] if other requests have too many sequences or
    /// too long prompts; or [`RequestError::EngineStopped`].
    pub fn submit_with(
        &self,
        permit: &Arc<Permit>,
        request: Request,
        sink: impl FnMut(Vec<Event>) + Send + 'static,
    ) -> Result<RequestHandle, RequestError> {
        check(&request, self.info())?;
        permit.add_sequence(size_of_val(&request.prompt[..]))?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let meter = Meter::new(self.shared.metrics.clone());
        let handle = RequestHandle { cancelled: cancelled.clone() };
        let submission = Submission::new(request, permit.clone(), Box::new(sink), cancelled, meter);
        match self.shared.messages.send(Message::Submit(Box::new(submission))) {
            Ok(()) => Ok(handle),
            Err(mpsc::SendError(message)) => {
                if let Message::Submit(submission) = message {
                    submission.reject();
                }
                Err(RequestError::EngineStopped)
            }
        }
    }

    /// Statistics of the prefix cache; waits for at most a step.
    ///
    /// # Errors
    /// [`RequestError::EngineStopped`].
    pub fn cache_stats(&self) -> Result<CacheStats, RequestError> {
        self.ask(Message::CacheStats)
    }

    /// Empties the prefix cache and returns its statistics before; running requests continue. Waits
    /// for at most a step.
    ///
    /// # Errors
    /// [`RequestError::EngineStopped`].
    pub fn clear_cache(&self) -> Result<CacheStats, RequestError> {
        self.ask(Message::ClearCache)
    }

    /// Sets the tokens of a short text on which layer skipping is measured. Without one, every
    /// second inner layer is skipped.
    pub fn set_calibration_text(&self, mut text: Vec<u32>) {
        // A tokenizer may have more tokens than the model.
        text.retain(|&id| (id as usize) < self.info().vocab_size);
        // A stopped engine measures nothing.
        let _ = self.shared.messages.send(Message::CalibrationText(text));
    }

    /// Measured times of steps and drafts, by which the engine decides whether to draft; waits for
    /// at most a step.
    ///
    /// # Errors
    /// [`RequestError::EngineStopped`].
    pub fn step_times(&self) -> Result<StepTimes, RequestError> {
        self.ask(Message::StepTimes)
    }

    fn ask<T>(&self, message: impl FnOnce(mpsc::Sender<T>) -> Message) -> Result<T, RequestError> {
        let (sender, answer) = mpsc::channel();
        self.shared.messages.send(message(sender)).map_err(|_| RequestError::EngineStopped)?;
        answer.recv().map_err(|_| RequestError::EngineStopped)
    }
}

/// Keeps a request alive: dropping it stops the generation within one step.
#[must_use = "dropping the handle cancels the request"]
pub struct RequestHandle {
    cancelled: Arc<AtomicBool>,
}

impl RequestHandle {
    /// Stops the generation within one step, as dropping the handle does.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn check(request: &Request, info: &ModelInfo) -> Result<(), RequestError> {
    if request.prompt.is_empty() {
        return Err(RequestError::EmptyPrompt);
    }
    if info.is_encoder && request.pooling != Some(Pooling::Mean) {
        return Err(RequestError::EncoderOnly);
    }
    if request.max_tokens == 0 && request.pooling.is_none() {
        return Err(RequestError::NoTokensAsked);
    }
    if request.prompt.len() >= info.context_length {
        return Err(RequestError::PromptTooLong {
            prompt: request.prompt.len(),
            context: info.context_length,
        });
    }
    if let Some(&position) = request.cache_breakpoints.iter().find(|&&at| at > request.prompt.len()) {
        return Err(RequestError::BadCacheBreakpoint { position, prompt: request.prompt.len() });
    }
    let biased = request.sampling.logit_bias.keys();
    match request.prompt.iter().chain(biased).find(|&&id| id as usize >= info.vocab_size) {
        Some(&id) => return Err(RequestError::TokenOutOfRange { id, vocab_size: info.vocab_size }),
        None => sampling::check(&request.sampling)?,
    }
    check_images(request, info)?;
    check_speculation(request, info)?;
    info.memory.check(request, info.context_length)
}

/// Checks where images are; whether their tensors fit the tower, only the engine's thread knows.
fn check_images(request: &Request, info: &ModelInfo) -> Result<(), RequestError> {
    let image_token_id = match info.vision {
        _ if request.images.is_empty() => return Ok(()),
        Vision::Tower { image_token_id } => image_token_id,
        Vision::Dropped => return Err(RequestError::NoVisionTower),
        Vision::None => return Err(RequestError::NoVision),
    };
    let mut end = 0;
    for (index, image) in request.images.iter().enumerate() {
        let bad = |message: String| Err(RequestError::BadImage { index, message });
        if image.positions.is_empty() {
            return bad("it has no positions in the prompt".into());
        }
        for run in &image.positions {
            if run.is_empty() || run.start < end || run.end > request.prompt.len() {
                return bad(format!("positions {run:?} overlap others or are outside the prompt"));
            }
            end = run.end;
            if let Some(at) = run.clone().find(|&at| request.prompt[at] != image_token_id) {
                let found = request.prompt[at];
                return bad(format!("position {at} has token {found}, not the image token {image_token_id}"));
            }
        }
    }
    Ok(())
}

fn check_speculation(request: &Request, info: &ModelInfo) -> Result<(), RequestError> {
    let (drafter, depth) = match &request.speculation {
        Some(Speculate::Fixed { drafter, depth }) => (&**drafter, depth.unwrap_or(0)),
        Some(Speculate::Lossy) => (LAYER_SKIP, 0),
        Some(Speculate::Off | Speculate::Auto) | None => return Ok(()),
    };
    if !info.drafters.contains(&drafter) {
        let (name, known) = (drafter.to_owned(), info.drafters.join(", "));
        return Err(RequestError::UnknownDrafter { name, known });
    }
    if depth > MAX_DEPTH {
        return Err(RequestError::DraftTooLong { depth, most: MAX_DEPTH });
    }
    Ok(())
}
