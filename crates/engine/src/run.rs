//! The engine thread: admit, plan, step, emit. The only owner of MLX.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use crate::{
    Options,
    handle::{Message, Submission},
    memory::is_out_of_memory,
    metrics::Holding,
    models::Model,
    prefix::{Disk, Prefix},
    queue::Queue,
    request::{Event, FinishReason, ModelInfo, Priority, RequestError, Usage},
    schedule::{Want, plan},
    sequence::Sequence,
    speculate::{Clock, Speculator, Watched},
    step::Step,
};

/// How soon what a disk has done is noticed where there is nothing else to do.
const DISK_WAIT: Duration = Duration::from_millis(2);

/// Serves requests until it is told to stop.
pub fn run(
    model: Rc<dyn Model>,
    info: ModelInfo,
    options: Options,
    disk: Option<Disk>,
    speculator: Speculator,
    messages: Receiver<Message>,
) {
    let mut runner = Runner::new(model, info, options, disk, speculator);
    runner.tell_holding();
    while runner.admit(&messages) {
        runner.round();
    }
    runner.cancel_all();
}

pub struct Runner {
    pub model: Rc<dyn Model>,
    pub info: ModelInfo,
    pub options: Options,
    pub running: Vec<Sequence>,
    /// Ended, and their state not yet stored.
    pub ended: Vec<Sequence>,
    queue: Queue<Submission>,
    /// Its turn has come, and there is no room for it yet.
    pub held: Option<Submission>,
    pub prefix: Prefix,
    /// The step the device is working on while the next one is built.
    pub launched: Option<Step>,
    /// Id of the next sequence.
    next: u64,
    pub speculator: Speculator,
    watched: Watched,
    pub clock: Clock,
    /// What is told of what the prefix cache holds, and as of which change.
    holding: Holding,
    told: Option<u64>,
}

impl Runner {
    pub fn new(
        model: Rc<dyn Model>,
        info: ModelInfo,
        options: Options,
        disk: Option<Disk>,
        speculator: Speculator,
    ) -> Runner {
        Runner {
            prefix: Prefix::new(&options, &model.make_caches(), info.memory.stored.clone(), disk),
            holding: Holding::new(options.metrics.clone()),
            told: None,
            model,
            info,
            options,
            running: vec![],
            ended: vec![],
            queue: Queue::new(),
            held: None,
            launched: None,
            next: 0,
            watched: speculator.watched(),
            speculator,
            clock: Clock::default(),
        }
    }

    /// Everything between two looks at what has come.
    pub fn round(&mut self) {
        self.prefix.start_slice();
        self.drop_cancelled();
        self.drop_late(Instant::now());
        self.step();
        self.keep_ended();
        self.work_on_disk();
        self.tell_holding();
    }

    /// Tells what is held now, if that may have changed.
    fn tell_holding(&mut self) {
        self.options.metrics.saw_memory();
        if self.told.replace(self.prefix.changes) != Some(self.prefix.changes) {
            self.holding.is(self.prefix.stats());
        }
    }

    /// Takes in what has come and admits what has waited longest; waits if there is nothing else to do. `false` at the end.
    pub fn admit(&mut self, messages: &Receiver<Message>) -> bool {
        let nothing_runs = self.running.is_empty() && self.ended.is_empty() && self.launched.is_none();
        let idle = nothing_runs && !self.is_waited_for();
        let first = match self.prefix.awaits_disk() {
            true if idle || self.only_waits_for_disk() => messages.recv_timeout(DISK_WAIT),
            false if idle => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            _ => Err(RecvTimeoutError::Timeout),
        };
        if idle {
            self.clock.restart();
        }
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return false;
        }
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
                Message::Text(text) => self.speculator.read(&text),
                Message::StepTimes(answer) => _ = answer.send(self.speculator.times()),
                Message::Stop => return false,
            }
        }
        let places = self.options.max_batch.max(1);
        while self.running.len() < places {
            let background = |s: &&Sequence| s.request.priority == Priority::Background;
            let background = self.running.iter().filter(background).count();
            // Long background work must leave a place for whoever comes.
            let may = |p| p != Priority::Background || background < (places - 1).max(1);
            let Some(submission) = self.held.take().or_else(|| self.queue.pop(may)) else { break };
            if !self.has_room(&submission.request) {
                self.keep_all_ended();
            }
            if !self.has_room(&submission.request) {
                self.hold(submission);
                if self.held.is_some() {
                    break;
                }
                continue;
            }
            let speculating = self.speculate_on(&submission.request);
            let sequence = Sequence::new(self.next, submission, &*self.model, &self.info, speculating);
            self.running.push(sequence);
            self.next += 1;
        }
        self.share_room();
        true
    }

    /// Whether there is no step until something was read from a disk.
    fn only_waits_for_disk(&self) -> bool {
        let waits = |sequence: &Sequence| !sequence.begun && !sequence.is_resuming();
        self.launched.is_none() && self.ended.is_empty() && self.running.iter().all(waits)
    }

    fn is_waited_for(&self) -> bool {
        self.held.is_some() || !self.queue.is_empty()
    }

    /// Takes out of those that wait the ones that `leaves` names.
    fn leaving(&mut self, leaves: impl Fn(&Submission) -> bool) -> Vec<Submission> {
        let mut left = self.queue.extract(&leaves);
        left.extend(self.held.take_if(|held| leaves(held)));
        left
    }

    /// Ends every request, and leaves nothing on the device.
    fn cancel_all(mut self) {
        self.keep_all_ended();
        self.running.iter().for_each(Sequence::cancel);
        self.queue.iter().chain(&self.held).for_each(Submission::cancel);
        self.drop_cancelled();
        self.collect_launched(&[]);
    }

    fn drop_cancelled(&mut self) {
        for mut sequence in self.running.extract_if(.., |s| s.is_cancelled()) {
            sequence.finish(FinishReason::Cancelled);
            self.speculator.ended(&sequence);
            self.ended.push(sequence);
        }
        for mut submission in self.leaving(Submission::is_cancelled) {
            let usage = Usage { prompt_tokens: submission.request.prompt.len(), ..Usage::default() };
            submission.emit(Event::Finished { reason: FinishReason::Cancelled, usage });
        }
    }

    /// Fails those whose time is up; what they held is free again.
    fn drop_late(&mut self, now: Instant) {
        for mut sequence in self.running.extract_if(.., |s| s.request.is_late(now)) {
            sequence.emit(Event::Failed(RequestError::TimeIsUp));
            self.speculator.forget(sequence.id);
            self.ended.push(sequence);
        }
        for mut submission in self.leaving(|submission| submission.request.is_late(now)) {
            submission.emit(Event::Failed(RequestError::TimeIsUp));
        }
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
        let watched = &self.watched;
        guarded(|| Step::launch(model, running, plan, prefix, watched))
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
                self.learn(load, behind.is_empty());
                self.show(collected.hidden);
                collected.ended.iter().for_each(|s| self.speculator.ended(s));
                self.ended.extend(collected.ended);
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
    /// behind it. If that was for want of memory, they fail. Else one alone is to blame itself; several start over, one at
    /// a time, until the guilty one is alone.
    fn fail(&mut self, mut involved: Vec<u64>, message: String) {
        involved.sort_unstable();
        involved.dedup();
        tracing::error!(sequences = involved.len(), "step failed: {message}");
        self.options.metrics.failed_steps.add(1);
        if is_out_of_memory(&message) {
            self.run_out(&involved, &message);
        } else if let [only] = involved[..]
            && let Some(at) = self.running.iter().position(|s| s.id == only)
        {
            // What it resumed from might be to blame, so it gets one more chance without.
            let sequence = &mut self.running[at];
            match sequence.resumed && !sequence.cold {
                true => sequence.cold = true,
                false => self.running.remove(at).emit(Event::Failed(RequestError::Step(message))),
            }
        }
        self.ended.clear();
        // A later step may have been built on the failed one's state, for any of them.
        let (model, info) = (&*self.model, &self.info);
        self.running.iter_mut().for_each(|s| s.restart(model, info));
        self.running.iter().for_each(|s| self.speculator.forget(s.id));
        self.clock.restart();
    }
}

/// Runs one step's work; a panic in it is an error like any other.
pub fn guarded<T>(work: impl FnOnce() -> mlx::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(mlx::panic_message(&*panic)),
    }
}
