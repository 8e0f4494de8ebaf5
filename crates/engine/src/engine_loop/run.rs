//! The engine loop: receive, admit, attach prefixes, schedule, launch, finish. Its thread alone
//! owns MLX.

use std::{
    rc::Rc,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use super::{
    deferred::Deferred, fault, handle::Message, heartbeat::Heartbeat, images::FeatureCache,
    meter::CacheGauges, queue::Queue, sequence::Sequence, step::Step, step_clock::StepClock,
    submission::Submission,
};
use crate::{
    api::{GateMember, MemoryClass, ModelInfo, Options, Priority, Reservation},
    guard::{contained, guarded},
    masks::MaskWorkers,
    models::Model,
    prefix::{DiskTier, PrefixCache},
    speculate::{HiddenCapture, Speculator},
};

/// How often an otherwise idle loop looks for completed disk reads and writes.
const DISK_POLL: Duration = Duration::from_millis(2);
/// How often an idle loop retries deferred requests: another engine may have freed memory.
const MEMORY_POLL: Duration = Duration::from_millis(10);

/// Serves requests until [`Message::Stop`], or until every sender is gone. A panic in a tick costs
/// the request that caused it, or one restart of those that run, never the thread.
pub(crate) fn run(
    model: Rc<dyn Model>,
    info: ModelInfo,
    options: Options,
    disk: Option<DiskTier>,
    speculator: Speculator,
    heartbeat: &Heartbeat,
    messages: Receiver<Message>,
) {
    let _ended = EndOnDrop(heartbeat);
    let mut engine_loop = EngineLoop::new(model, info, options, disk, speculator);
    engine_loop.report_memory();
    while engine_loop.tick(&messages, heartbeat) {}
    if let Err(error) = contained(|| engine_loop.cancel_all()) {
        tracing::error!("the engine did not shut down cleanly: {error}");
    }
}

/// Reports the end of the thread, whatever its cause.
struct EndOnDrop<'a>(&'a Heartbeat);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

pub(crate) struct EngineLoop {
    pub model: Rc<dyn Model>,
    pub info: ModelInfo,
    pub options: Options,
    pub running: Vec<Sequence>,
    /// Sequences that ended and whose state is not stored yet.
    pub ended: Vec<Sequence>,
    pub queue: Queue<Submission>,
    pub deferred: Vec<Deferred>,
    pub prefix: PrefixCache,
    /// The step that the device computes while the next one is built.
    pub launched: Option<Step>,
    /// Id of the next sequence.
    pub next_id: u64,
    /// Ticks that failed in a row.
    pub failed_ticks: usize,
    pub speculator: Speculator,
    pub hidden_capture: HiddenCapture,
    pub clock: StepClock,
    /// Started by the first request with a constraint.
    pub mask_workers: Option<MaskWorkers>,
    cache_gauges: CacheGauges,
    /// The version of the prefix cache that the gauges show.
    reported_version: Option<u64>,
    /// Memory of the prefix cache, as other engines see it.
    pub cache_memory: Option<Reservation>,
    pub features: FeatureCache,
    /// The last request to return freed buffers that was met.
    pub releases: u64,
    /// Takes turns with other engines.
    gate: GateMember,
}

impl EngineLoop {
    pub(crate) fn new(
        model: Rc<dyn Model>,
        info: ModelInfo,
        options: Options,
        disk: Option<DiskTier>,
        mut speculator: Speculator,
    ) -> EngineLoop {
        EngineLoop {
            prefix: PrefixCache::new(&options, &model.make_caches(), info.memory.stored.clone(), disk),
            cache_gauges: CacheGauges::new(options.metrics.clone()),
            reported_version: None,
            cache_memory: options.metrics.account.reserve(MemoryClass::PrefixCache, 0, None).ok(),
            features: FeatureCache::new(&options.metrics.account),
            releases: options.metrics.account.cache_pressure().releases,
            gate: options.gate.join(),
            model,
            info,
            options,
            running: vec![],
            ended: vec![],
            queue: Queue::new(),
            deferred: vec![],
            launched: None,
            next_id: 0,
            failed_ticks: 0,
            hidden_capture: speculator.hidden_capture(),
            speculator,
            clock: StepClock::default(),
            mask_workers: None,
        }
    }

    /// Receives messages and does everything else once; `false` at the end.
    pub(crate) fn tick(&mut self, messages: &Receiver<Message>, heartbeat: &Heartbeat) -> bool {
        let tick = || {
            let goes_on = self.receive(messages, heartbeat);
            if goes_on {
                // The wait for the turn is not work: another engine works meanwhile.
                heartbeat.idle();
                let turn = self.gate.turn(self.most_urgent());
                self.clock.exclude(turn.waited());
                heartbeat.working();
                self.admit();
                self.work();
            }
            Ok(goes_on)
        };
        match guarded(tick) {
            Ok(goes_on) => {
                self.failed_ticks = 0;
                goes_on
            }
            Err(message) => {
                self.failed_ticks += 1;
                self.recover(&message);
                true
            }
        }
    }

    /// The priority of the most urgent request that runs or waits.
    fn most_urgent(&self) -> Priority {
        let running = self.running.iter().map(|sequence| sequence.request.priority);
        let waiting = self.queue.iter().map(|submission| submission.request.priority);
        let deferred = self.deferred.iter().map(|deferred| deferred.candidate.priority());
        let all = running.chain(waiting).chain(deferred);
        all.min_by_key(|priority| *priority as usize).unwrap_or(Priority::Background)
    }

    fn work(&mut self) {
        fault::point("tick");
        self.prefix.reset_copy_budget();
        self.drop_cancelled();
        self.expire(Instant::now());
        self.grow_reservations();
        self.step();
        self.measure_slice();
        self.store_finished();
        self.run_disk_io();
        self.report_memory();
    }

    /// Launches the next step, then reads the one before it: the device computes while tokens are
    /// delivered.
    fn step(&mut self) {
        let memory = self.check_memory();
        self.attach_prefixes();
        if self.must_read() {
            // A failure restarts sequences.
            self.collect_launched(&[]);
            self.attach_prefixes();
        }
        self.see();
        self.running.iter_mut().for_each(Sequence::follow_constraint);
        self.draft();
        self.running.iter_mut().for_each(Sequence::order_masks);
        let scheduled = self.schedule();
        self.launch_and_collect(&scheduled, memory);
    }

    /// Receives the messages that have arrived; waits if there is nothing else to do. `false` at
    /// the end.
    fn receive(&mut self, messages: &Receiver<Message>, heartbeat: &Heartbeat) -> bool {
        fault::point("receive");
        let measures = self.speculator.is_measuring();
        let runs = !self.running.is_empty() || !self.ended.is_empty() || self.launched.is_some();
        let idle = !runs && !measures;
        let first = match self.receive_mode(idle, measures) {
            ReceiveMode::Poll => Err(RecvTimeoutError::Timeout),
            ReceiveMode::Within(time) => {
                heartbeat.idle();
                messages.recv_timeout(time)
            }
            ReceiveMode::Block => {
                heartbeat.idle();
                messages.recv().map_err(RecvTimeoutError::from)
            }
        };
        if idle {
            self.clock.restart();
        }
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return false;
        }
        heartbeat.working();
        first.into_iter().chain(messages.try_iter()).all(|message| self.handle(message))
    }

    /// `false` if the loop should stop.
    fn handle(&mut self, message: Message) -> bool {
        match message {
            Message::Submit(submission) => {
                self.queue.push(submission.request.priority, submission.group(), *submission);
            }
            // The caller may be gone.
            Message::CacheStats(answer) => _ = answer.send(self.prefix.stats()),
            Message::ClearCache(answer) => {
                let before = self.prefix.stats();
                self.prefix.clear(move || {
                    release_memory();
                    _ = answer.send(before);
                });
            }
            Message::CalibrationText(text) => self.speculator.set_calibration_text(&text),
            Message::StepTimes(answer) => _ = answer.send(self.speculator.times()),
            // Every tick checks the memory and its pressure anyway.
            Message::MemoryChanged => {}
            Message::Stop => return false,
        }
        true
    }

    /// How long the loop may wait for a message.
    fn receive_mode(&self, idle: bool, measures: bool) -> ReceiveMode {
        let on_disk = self.prefix.is_disk_busy() && !measures;
        let has_waiting = !self.deferred.is_empty() || !self.queue.is_empty();
        match idle {
            _ if on_disk && (idle || self.only_waits_for_disk()) => ReceiveMode::Within(DISK_POLL),
            true if has_waiting => ReceiveMode::Within(MEMORY_POLL),
            true => ReceiveMode::Block,
            false => ReceiveMode::Poll,
        }
    }

    /// Whether no step can run before something was read from the disk.
    fn only_waits_for_disk(&self) -> bool {
        self.launched.is_none() && self.ended.is_empty() && self.running.iter().all(|s| s.phase.is_waiting())
    }

    /// Updates the gauges, and the memory that the prefix cache holds, if it changed.
    fn report_memory(&mut self) {
        self.options.metrics.record_memory();
        let version = Some(self.prefix.version);
        if self.reported_version != version {
            self.reported_version = version;
            let stats = self.prefix.stats();
            // Without a limit: the cache shrinks for the other classes.
            self.cache_memory.iter_mut().for_each(|memory| _ = memory.resize(stats.bytes, None));
            self.cache_gauges.set(stats);
            self.share_prefix_cache();
        }
    }
}

enum ReceiveMode {
    Poll,
    Within(Duration),
    Block,
}

/// Gives freed memory back to the system.
pub(super) fn release_memory() {
    if let Err(error) = mlx::release_memory() {
        tracing::warn!("freed memory is not returned to the system: {error}");
    }
}
