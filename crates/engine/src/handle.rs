//! The caller's end of a running engine: submit requests, hold tickets; nothing here touches an array.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle, ThreadId},
};

use crate::{
    heartbeat::{Health, Heartbeat},
    metrics::{Meter, Metrics},
    options::Speculate,
    places::{Place, Places},
    request::{CacheStats, Event, ModelInfo, Request, RequestError},
    sampling_range,
    speculate::{LAYER_SKIP, MAX_DEPTH, StepTimes},
};

/// Receives a request's events on the engine thread, those of a step together; must not block.
pub type Sink = Box<dyn FnMut(Vec<Event>) + Send>;

/// A request on its way to the engine thread.
pub struct Submission {
    pub request: Request,
    /// Until the request has ended.
    place: Option<Arc<Place>>,
    sink: Sink,
    /// What the sink has not been told yet.
    untold: Vec<Event>,
    cancelled: Arc<AtomicBool>,
    /// It was told its end.
    ended: bool,
    pub meter: Meter,
}

impl Drop for Submission {
    /// Whatever becomes of it, its caller hears of an end.
    fn drop(&mut self) {
        if !self.ended {
            let lost = || RequestError::Step("the engine failed while it worked on it".into());
            self.emit(Event::Failed(if thread::panicking() { lost() } else { RequestError::EngineStopped }));
        }
    }
}

impl Submission {
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Names those that queue as one.
    pub fn group(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| place.id)
    }

    /// Keeps an event for the caller until the step is over: to be told of each of a draft's tokens alone would wake it as
    /// often.
    pub fn note(&mut self, event: Event) {
        self.meter.told(&event);
        self.untold.push(event);
    }

    /// Hands the caller what there is to tell. One that panics has lost its request, nothing more.
    pub fn tell(&mut self) {
        if self.untold.is_empty() {
            return;
        }
        let (sink, events) = (&mut self.sink, std::mem::take(&mut self.untold));
        if catch_unwind(AssertUnwindSafe(|| sink(events))).is_err() {
            self.cancel();
        }
    }

    /// Hands the caller an event, behind all others.
    pub fn emit(&mut self, event: Event) {
        if self.ended {
            return;
        }
        if matches!(event, Event::Finished { .. } | Event::Failed(_)) {
            // Whoever hears of the end may come again at once.
            self.place = None;
            self.ended = true;
        }
        self.note(event);
        self.tell();
    }
}

/// What the engine thread is sent.
pub enum Message {
    Submit(Box<Submission>),
    /// What the prefix cache holds and has done.
    CacheStats(mpsc::Sender<CacheStats>),
    /// Empty the prefix cache; answered with what it held.
    ClearCache(mpsc::Sender<CacheStats>),
    /// Tokens of a short text, for what has to be measured by one.
    CalibrationText(Vec<u32>),
    /// What steps and drafts have taken.
    StepTimes(mpsc::Sender<StepTimes>),
    /// Another engine takes memory, or gives it back.
    MemoryChanged,
    /// Cancel everything and end.
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
    /// Held while somebody waits for the thread, so that whoever else stops the engine waits too.
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
    places: Arc<Places>,
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
        // A sink that holds the last engine drops it on the engine's own thread, which cannot wait for itself.
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
        places: Arc<Places>,
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
                places,
                metrics,
                heartbeat,
            }),
        }
    }

    /// Cancels every request and waits until the engine's thread has ended and freed the model: at most as long as
    /// the step takes that is being computed.
    ///
    /// A program that exits while MLX computes crashes in MLX's destructors: call this, or drop every clone, first.
    pub fn stop(&self) {
        self.shared.stop();
    }

    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// What this engine, and those that count with it, have done. Never waits, and holds when the engine has stopped.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
    }

    /// Whether the engine's thread does its work. Never waits.
    pub fn health(&self) -> Health {
        self.shared.heartbeat.health()
    }

    /// A place for a request, or for several that belong together, such as the choices of one answer.
    ///
    /// # Errors
    /// [`RequestError::QueueFull`] if as many requests wait as may.
    pub fn enter(&self) -> Result<Arc<Place>, RequestError> {
        self.shared.places.take()
    }

    /// Queues a request in a place of its own, whose events come one by one: [`Engine::enter`] and [`Engine::submit_in`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn submit(
        &self,
        request: Request,
        mut sink: impl FnMut(Event) + Send + 'static,
    ) -> Result<Ticket, RequestError> {
        self.submit_in(&self.enter()?, request, move |events| events.into_iter().for_each(&mut sink))
    }

    /// Queues a request; its events, those of a step together, go to `sink` on the engine thread until `Finished` or `Failed`.
    ///
    /// # Errors
    /// A request the model cannot run (empty, too long, unknown ids, parameters out of range), before
    /// any event; or [`RequestError::EngineStopped`].
    pub fn submit_in(
        &self,
        place: &Arc<Place>,
        request: Request,
        sink: impl FnMut(Vec<Event>) + Send + 'static,
    ) -> Result<Ticket, RequestError> {
        check(&request, self.info())?;
        let (cancelled, place) = (Arc::new(AtomicBool::new(false)), Some(place.clone()));
        let meter = Meter::new(self.shared.metrics.clone());
        let (sink, untold) = (Box::new(sink), vec![]);
        let (ticket, ended) = (Ticket { cancelled: cancelled.clone() }, false);
        let submission = Submission { request, place, sink, untold, cancelled, ended, meter };
        match self.shared.messages.send(Message::Submit(Box::new(submission))) {
            Ok(()) => Ok(ticket),
            Err(mpsc::SendError(message)) => {
                // Who is refused hears of it here and not by an event.
                if let Message::Submit(mut submission) = message {
                    submission.ended = true;
                }
                Err(RequestError::EngineStopped)
            }
        }
    }

    /// What the prefix cache holds and has done; waits for at most a step.
    ///
    /// # Errors
    /// [`RequestError::EngineStopped`].
    pub fn cache_stats(&self) -> Result<CacheStats, RequestError> {
        self.ask(Message::CacheStats)
    }

    /// Empties the prefix cache and returns what it held; requests that run go on. Waits for at most a step.
    ///
    /// # Errors
    /// [`RequestError::EngineStopped`].
    pub fn clear_cache(&self) -> Result<CacheStats, RequestError> {
        self.ask(Message::ClearCache)
    }

    /// Sets the tokens of a short text on which the least important layers are measured, if requests need
    /// them. Without one, every second layer is skipped.
    pub fn set_calibration_text(&self, mut text: Vec<u32>) {
        // A tokenizer may have more tokens than the model.
        text.retain(|&id| (id as usize) < self.info().vocab_size);
        // A stopped engine has nothing to measure.
        let _ = self.shared.messages.send(Message::CalibrationText(text));
    }

    /// What steps and drafts have taken so far, as it decides whether to draft; waits for at most a step.
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
    if let Some(&position) = request.cache_breakpoints.iter().find(|&&at| at > request.prompt.len()) {
        return Err(RequestError::BadCacheBreakpoint { position, prompt: request.prompt.len() });
    }
    let biased = request.sampling.logit_bias.keys();
    match request.prompt.iter().chain(biased).find(|&&id| id as usize >= info.vocab_size) {
        Some(&id) => return Err(RequestError::TokenOutOfRange { id, vocab_size: info.vocab_size }),
        None => sampling_range::check(&request.sampling)?,
    }
    check_speculation(request, info)?;
    info.memory.check(request, info.context_length)
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
