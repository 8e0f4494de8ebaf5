//! The engine thread: admit, plan, step, emit. The only owner of MLX.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use crate::{
    Options,
    account::{MemoryClass, Reservation},
    fault,
    handle::{Message, Submission},
    heartbeat::Heartbeat,
    memory::is_out_of_memory,
    metrics::Holding,
    models::Model,
    prefix::{DiskTier, PrefixCache},
    queue::Queue,
    request::{Event, FinishReason, ModelInfo, Priority, RequestError, Usage},
    room::{Deferred, Waiting},
    schedule::{Want, plan},
    sequence::{End, Sequence},
    speculate::{HiddenCapture, Speculator},
    speculation::StepClock,
    step::Step,
};

/// How soon what a disk has done is noticed where there is nothing else to do.
const DISK_WAIT: Duration = Duration::from_millis(2);
/// How long it waits for messages when nothing runs and what waits has no room, as another engine may hold the memory.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// After this many failed rounds in a row all waiting requests fail too.
const MOST_FAILED: usize = 8;

/// Serves requests until it is told to stop. A panic in a round costs the request that it is about, or those that run one
/// restart, and never the thread.
pub fn run(
    model: Rc<dyn Model>,
    info: ModelInfo,
    options: Options,
    disk: Option<DiskTier>,
    speculator: Speculator,
    heartbeat: &Heartbeat,
    messages: Receiver<Message>,
) {
    let _ends = Ends(heartbeat);
    let mut runner = Runner::new(model, info, options, disk, speculator);
    runner.tell_holding();
    while runner.turn(&messages, heartbeat) {}
    if let Err(error) = contained(|| runner.cancel_all()) {
        tracing::error!("the engine did not end as it should: {error}");
    }
}

/// Says that the thread has ended, whatever ended it.
struct Ends<'a>(&'a Heartbeat);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

pub struct Runner {
    pub model: Rc<dyn Model>,
    pub info: ModelInfo,
    pub options: Options,
    pub running: Vec<Sequence>,
    /// Ended, and their state not yet stored.
    pub ended: Vec<Sequence>,
    pub queue: Queue<Submission>,
    /// Their turn has come, and there is no room for them yet.
    pub held: Vec<Deferred>,
    pub prefix: PrefixCache,
    /// The step the device is working on while the next one is built.
    pub launched: Option<Step>,
    /// Id of the next sequence.
    next: u64,
    /// Rounds that have failed in a row.
    failed: usize,
    pub speculator: Speculator,
    hidden_capture: HiddenCapture,
    pub clock: StepClock,
    /// What is told of what the prefix cache holds, and as of which change.
    holding: Holding,
    told: Option<u64>,
    /// What the prefix cache holds, as others see it.
    pub cache_memory: Option<Reservation>,
}

impl Runner {
    pub fn new(
        model: Rc<dyn Model>,
        info: ModelInfo,
        options: Options,
        disk: Option<DiskTier>,
        mut speculator: Speculator,
    ) -> Runner {
        Runner {
            prefix: PrefixCache::new(&options, &model.make_caches(), info.memory.stored.clone(), disk),
            holding: Holding::new(options.metrics.clone()),
            told: None,
            cache_memory: options.metrics.account.reserve(MemoryClass::PrefixCache, 0, None).ok(),
            model,
            info,
            options,
            running: vec![],
            ended: vec![],
            queue: Queue::new(),
            held: vec![],
            launched: None,
            next: 0,
            failed: 0,
            hidden_capture: speculator.hidden_capture(),
            speculator,
            clock: StepClock::default(),
        }
    }

    /// Takes in what has come and does a round; `false` at the end.
    pub fn turn(&mut self, messages: &Receiver<Message>, heartbeat: &Heartbeat) -> bool {
        let round = || {
            let goes_on = self.receive(messages, heartbeat);
            if goes_on {
                self.admit();
                self.round();
            }
            Ok(goes_on)
        };
        match guarded(round) {
            Ok(goes_on) => {
                self.failed = 0;
                goes_on
            }
            Err(message) => {
                self.failed += 1;
                self.recover(&message);
                true
            }
        }
    }

    /// Everything between two looks at what has come.
    fn round(&mut self) {
        fault::point("round");
        self.prefix.reset_copy_budget();
        self.drop_cancelled();
        self.drop_late(Instant::now());
        self.grow();
        self.step();
        self.measure_slice();
        self.keep_ended();
        self.work_on_disk();
        self.tell_holding();
    }

    /// Tells what is held now, if that may have changed.
    fn tell_holding(&mut self) {
        self.options.metrics.saw_memory();
        if self.told.replace(self.prefix.version) != Some(self.prefix.version) {
            let stats = self.prefix.stats();
            // Without a limit: the cache makes room for the other classes.
            self.cache_memory.iter_mut().for_each(|memory| _ = memory.resize(stats.bytes, None));
            self.holding.is(stats);
        }
    }

    /// Takes in what has come; waits if there is nothing else to do. `false` at the end.
    fn receive(&mut self, messages: &Receiver<Message>, heartbeat: &Heartbeat) -> bool {
        fault::point("receive");
        let measures = self.speculator.is_measuring();
        let nothing_runs = self.running.is_empty() && self.ended.is_empty() && self.launched.is_none();
        let idle = nothing_runs && !measures;
        let wait = match self.prefix.is_disk_busy() && !measures {
            true if idle || self.only_waits_for_disk() => Some(DISK_WAIT),
            _ if idle && self.is_waited_for() => Some(LOOK_AGAIN),
            _ => None,
        };
        let first = match wait {
            Some(wait) => {
                heartbeat.idle();
                messages.recv_timeout(wait)
            }
            None if idle => {
                heartbeat.idle();
                messages.recv().map_err(RecvTimeoutError::from)
            }
            None => Err(RecvTimeoutError::Timeout),
        };
        if idle {
            self.clock.restart();
        }
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return false;
        }
        heartbeat.working();
        for message in first.into_iter().chain(messages.try_iter()) {
            match message {
                Message::Submit(submission) => {
                    self.queue.push(submission.request.priority, submission.group(), *submission);
                }
                // Whoever asked may have gone.
                Message::CacheStats(answer) => _ = answer.send(self.prefix.stats()),
                Message::ClearCache(answer) => {
                    let held = self.prefix.stats();
                    self.prefix.clear(move || _ = answer.send(held));
                }
                Message::CalibrationText(text) => self.speculator.set_calibration_text(&text),
                Message::StepTimes(answer) => _ = answer.send(self.speculator.times()),
                // Rounds look at what there is room for.
                Message::MemoryChanged => {}
                Message::Stop => return false,
            }
        }
        true
    }

    /// Admits what has waited longest, as far as there is room for it.
    fn admit(&mut self) {
        let places = self.options.max_batch.max(1);
        while self.running.len() < places {
            let Some((next, memory)) = self.next_waiting(places) else { break };
            match next {
                Waiting::New(submission) => self.begin_sequence(*submission, memory),
                Waiting::Paused(mut sequence) => {
                    (sequence.room, sequence.memory) =
                        (self.first_tokens(&sequence.tokens, &sequence.request), memory);
                    self.running.push(*sequence);
                }
            }
        }
        self.share_room();
    }

    fn begin_sequence(&mut self, mut submission: Submission, memory: Reservation) {
        let room = self.first_tokens(&submission.request.prompt, &submission.request);
        let prepare = || {
            fault::point("admit");
            let speculation = self.new_speculation(&submission.request);
            let state = Sequence::state(&submission.request, &*self.model, &self.info);
            Ok((speculation, state))
        };
        match guarded(prepare) {
            Ok((speculation, state)) => {
                let mut sequence =
                    Sequence::new(self.next, submission, state, &self.info, speculation, memory);
                sequence.room = room;
                self.running.push(sequence);
                self.next += 1;
            }
            Err(message) => submission.emit(Event::Failed(failure(message))),
        }
    }

    /// Whether there is no step until something was read from a disk.
    fn only_waits_for_disk(&self) -> bool {
        let waits = |sequence: &Sequence| !sequence.begun && !sequence.is_resuming();
        self.launched.is_none() && self.ended.is_empty() && self.running.iter().all(waits)
    }

    fn is_waited_for(&self) -> bool {
        !self.held.is_empty() || !self.queue.is_empty()
    }

    /// Takes out of those that wait the ones that `leaves` names, and ends them.
    fn leaving(&mut self, leaves: impl Fn(&Submission) -> bool, end: impl Fn(&Submission) -> End) {
        let mut left = self.queue.extract(&leaves);
        for deferred in self.held.extract_if(.., |held| leaves(held.what.submission())).collect::<Vec<_>>() {
            match deferred.what {
                Waiting::New(submission) => left.push(*submission),
                Waiting::Paused(sequence) => {
                    let end = end(sequence.submission());
                    self.end(*sequence, end);
                }
            }
        }
        for mut submission in left {
            let event = match end(&submission) {
                End::Finished(reason) => {
                    let usage = Usage { prompt_tokens: submission.request.prompt.len(), ..Usage::default() };
                    Event::Finished { reason, usage }
                }
                End::Failed(error) => Event::Failed(error),
            };
            submission.emit(event);
        }
    }

    /// The one place where a sequence ends: its caller is told, drafters forget it, its memory is free with it. What one
    /// that did not fail has computed may go on in the prefix cache.
    pub fn end(&mut self, mut sequence: Sequence, end: End) {
        let whole = !matches!(&end, End::Failed(error) if *error != RequestError::TimeIsUp);
        let finished = matches!(end, End::Finished(_));
        let speculator = &mut self.speculator;
        let told = contained(|| {
            fault::point("end");
            sequence.end(end);
            if finished {
                speculator.on_finished(&sequence.speculation, &sequence.request.prompt, sequence.generated());
            }
        });
        self.release(&mut sequence.speculation);
        match told {
            Ok(()) if whole => self.ended.push(sequence),
            Ok(()) => {}
            Err(error) => {
                tracing::error!("a sequence did not end as it should: {error}");
                sequence.end(End::Failed(failure(error)));
            }
        }
    }

    /// Ends every request, and leaves nothing on the device.
    fn cancel_all(mut self) {
        self.keep_all_ended();
        self.running.iter().for_each(Sequence::cancel);
        let held = self.held.iter().map(|held| held.what.submission());
        self.queue.iter().chain(held).for_each(Submission::cancel);
        self.drop_cancelled();
        self.collect_launched(&[]);
    }

    fn drop_cancelled(&mut self) {
        let cancelled = || End::Finished(FinishReason::Cancelled);
        for sequence in self.running.extract_if(.., |s| s.is_cancelled()).collect::<Vec<_>>() {
            self.end(sequence, cancelled());
        }
        self.leaving(Submission::is_cancelled, |_| cancelled());
    }

    /// Fails those whose time is up; what they held is free again.
    fn drop_late(&mut self, now: Instant) {
        for sequence in self.running.extract_if(.., |s| s.request.is_late(now)).collect::<Vec<_>>() {
            self.end(sequence, End::Failed(RequestError::TimeIsUp));
        }
        self.leaving(|submission| submission.request.is_late(now), |_| End::Failed(RequestError::TimeIsUp));
    }

    /// Launches the next step, then reads the one before it: the device works while tokens are handed out.
    fn step(&mut self) {
        let memory = self.check_memory();
        self.begin();
        if self.must_read() {
            // May fail, and let all begin again.
            self.collect_launched(&[]);
            self.begin();
        }
        self.fail_stuck();
        self.draft();
        let plan = self.plan();
        let planned: Vec<u64> = plan.iter().map(|&(i, _)| self.running[i].id).collect();
        let next = match memory {
            _ if plan.is_empty() => Ok(None),
            Ok(()) => self.launch(&plan).map(Some),
            Err(message) => Err(message),
        };
        let alone = self.running.iter().any(|s| s.suspect);
        match next {
            Err(message) => {
                let mut involved = planned;
                if let Some(step) = self.launched.take() {
                    involved.extend(step.sequences());
                    step.abandon();
                }
                self.fail(involved, message);
            }
            Ok(next) => {
                if self.collect_launched(&planned) {
                    self.launched = next;
                } else if let Some(step) = next {
                    step.abandon();
                }
                if alone {
                    self.collect_launched(&[]);
                }
            }
        }
    }

    fn plan(&self) -> Vec<(usize, usize)> {
        fault::point("plan");
        // A suspect runs alone.
        let suspect = self.running.iter().position(|s| s.suspect);
        let want = |(i, sequence): (usize, &Sequence)| match suspect {
            Some(only) if only != i => (Want::Nothing, sequence.request.priority),
            _ => (sequence.wants(), sequence.request.priority),
        };
        let wants: Vec<(Want, Priority)> = self.running.iter().enumerate().map(want).collect();
        plan(&wants, self.options.prefill_chunk.max(1))
    }

    fn launch(&mut self, plan: &[(usize, usize)]) -> Result<Step, String> {
        let (model, running, prefix) = (&*self.model, &mut self.running[..], &self.prefix);
        let hidden_capture = &self.hidden_capture;
        guarded(|| Step::launch(model, running, plan, prefix, hidden_capture))
    }

    /// Reads the launched step, while another with the sequences `behind` may be on the device already; `false` if it
    /// failed, in which case every sequence that had state in flight starts over.
    pub fn collect_launched(&mut self, behind: &[u64]) -> bool {
        let Some(step) = self.launched.take() else { return true };
        let load = step.load();
        let involved: Vec<u64> = step.sequences().chain(behind.iter().copied()).collect();
        let (running, ended, info) = (&mut self.running, &mut self.ended, &self.info);
        match guarded(|| step.collect(running, ended, info)) {
            Ok(collected) => {
                if let Err(error) = contained(|| self.learn(load, behind.is_empty())) {
                    self.stop_drafting(&error);
                }
                self.publish_hidden(collected.hidden);
                collected.ended.into_iter().for_each(|(sequence, end)| self.end(sequence, end));
                collected.copied.into_iter().for_each(|(tokens, copied)| self.store(&tokens, copied));
                true
            }
            Err(message) => {
                self.fail(involved, message);
                false
            }
        }
    }

    /// A step failed while these sequences were on the device: MLX does not tell a step's failure from that of the one
    /// behind it. One alone is to blame itself; several start over, one at a time, until the guilty one is alone. If it
    /// was for want of memory, what is kept of past sequences makes room.
    fn fail(&mut self, mut involved: Vec<u64>, message: String) {
        involved.sort_unstable();
        involved.dedup();
        tracing::error!(sequences = involved.len(), "step failed: {message}");
        self.options.metrics.failed_steps.add(1);
        let out_of_memory = is_out_of_memory(&message);
        if out_of_memory {
            self.prefix.set_budget(self.prefix.stats().bytes / 2);
        }
        if let [only] = involved[..]
            && let Some(at) = self.running.iter().position(|s| s.id == only)
        {
            // What it resumed from might be to blame, so it gets one more chance without.
            let sequence = &mut self.running[at];
            match sequence.resumed && !sequence.cold && !out_of_memory {
                true => sequence.cold = true,
                false => {
                    let sequence = self.running.remove(at);
                    self.end(sequence, End::Failed(failure(message)));
                }
            }
        }
        self.ended.clear();
        self.restart_all();
    }

    /// Has all that run begin again: a later step may have been built on a failed one's state, for any of them.
    fn restart_all(&mut self) {
        for mut sequence in std::mem::take(&mut self.running) {
            self.release(&mut sequence.speculation);
            let (model, info) = (&*self.model, &self.info);
            let restart = || {
                fault::point("restart");
                sequence.restart(model, info);
            };
            match contained(restart) {
                Ok(()) => self.running.push(sequence),
                Err(message) => self.end(sequence, End::Failed(failure(message))),
            }
        }
        self.clock.restart();
    }

    /// A round panicked where nothing says which sequence it was about. All begin again, one at a time; if that was so
    /// already, the one that ran alone is to blame.
    fn recover(&mut self, message: &str) {
        tracing::error!("a round of the engine failed: {message}");
        self.options.metrics.failed_steps.add(1);
        let work = || {
            self.launched.take().into_iter().for_each(Step::abandon);
            self.ended.clear();
            // It may have been at work.
            self.prefix.clear_after_failure();
            let suspect = self.running.iter().position(|s| s.suspect);
            if let Some(at) = suspect {
                let sequence = self.running.remove(at);
                self.end(sequence, End::Failed(failure(message.into())));
            }
            self.restart_all();
            if self.failed >= MOST_FAILED {
                self.leaving(|_| true, |_| End::Failed(failure(message.into())));
            }
        };
        if let Err(error) = contained(work) {
            tracing::error!("what runs is given up: {error}");
            // Their callers hear of it when they are dropped.
            (self.running, self.ended, self.launched) = (vec![], vec![], None);
        }
    }
}

/// What a request that fails with `message` is told.
pub fn failure(message: String) -> RequestError {
    if is_out_of_memory(&message) { RequestError::OutOfMemory(message) } else { RequestError::Step(message) }
}

/// Runs one step's work; a panic in it is an error like any other.
pub fn guarded<T>(work: impl FnOnce() -> mlx::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(mlx::panic_message(&*panic)),
    }
}

/// As [`guarded`], of work that fails by a panic alone.
pub fn contained(work: impl FnOnce()) -> Result<(), String> {
    guarded(|| {
        work();
        Ok(())
    })
}
