//! Speculation in the engine loop: when a step has to be read before the next is built, the drafts
//! made in between, and what is learned from them.

use std::time::{Duration, Instant};

use crate::{
    request::{Request, RequestError},
    row::HiddenRow,
    run::{Runner, contained, guarded},
    sequence::{End, Sequence},
    speculate::{DraftTarget, SequenceSpeculation, TargetView},
    step::Load,
};

/// A step that takes this many times as long as expected was slowed down by other programs.
const MAX_SLOWDOWN: f64 = 1.5;

/// Time since the last step was read.
#[derive(Default)]
pub struct StepClock {
    read: Option<Instant>,
    /// Milliseconds of that spent on drafting.
    drafting: f64,
}

impl StepClock {
    /// No step is in flight: the time of the next one starts now.
    pub fn restart(&mut self) {
        *self = StepClock { read: Some(Instant::now()), drafting: 0.0 };
    }

    /// Excludes time that was spent on other work than steps.
    fn exclude(&mut self, time: Duration) {
        self.read = self.read.map(|read| read + time);
    }

    /// Milliseconds since the step before was read, and those of drafting among them.
    fn lap(&mut self) -> Option<(f64, f64)> {
        let (before, drafting) = (self.read, self.drafting);
        self.restart();
        Some((before?.elapsed().as_secs_f64() * 1e3, drafting))
    }
}

impl DraftTarget for Sequence {
    fn view(&mut self) -> TargetView<'_> {
        let max_draft = self.most_drafted();
        let Sequence { request, tokens, caches, speculation, .. } = self;
        TargetView { request, tokens, max_draft, caches, speculation }
    }

    fn can_take_draft(&self) -> bool {
        self.is_read()
    }

    fn take_draft(&mut self, tokens: Vec<u32>) -> usize {
        self.set_draft(tokens);
        self.draft.len()
    }
}

impl Runner {
    /// The speculation state of a new sequence. Missing measurements are made [between
    /// steps](Runner::measure_slice).
    pub fn new_speculation(&mut self, request: &Request) -> SequenceSpeculation {
        let mut speculation = self.speculator.new_sequence(request);
        if speculation.is_auto() {
            self.speculator.prepare(&*self.model);
        }
        if speculation.is_lossy()
            && let Some(layers) = self.speculator.skippable_layers()
        {
            speculation.set_skipped_layers(layers);
        }
        speculation
    }

    /// Computes a slice of the measurements that requests need, short enough not to stall streams.
    /// Lossy sequences start when the layer profile is complete; others decode without it.
    pub fn measure_slice(&mut self) {
        if !self.speculator.is_measuring() {
            return;
        }
        // A step on the device would be measured with it.
        self.collect_launched(&[]);
        let started = Instant::now();
        let (model, speculator) = (&*self.model, &mut self.speculator);
        if let Err(error) = guarded(|| speculator.measure_slice(model)) {
            tracing::warn!("costs or layers for drafts could not be measured: {error}");
        }
        self.clock.exclude(started.elapsed());
        let waiting = self.running.iter_mut().filter(|s| s.speculation.waits_for_layers());
        for s in waiting {
            let Some(layers) = self.speculator.skippable_layers() else { return };
            s.speculation.set_skipped_layers(layers);
        }
    }

    /// Whether the step on the device has to be read before the next is built: the next token
    /// depends on how much of a draft is accepted or on a constraint, or a draft pays. On the CPU
    /// it always has to: a launched step is computed at once.
    pub fn must_read(&mut self) -> bool {
        let Some(step) = &self.launched else { return false };
        if step.has_drafts() || !mlx::on_gpu() {
            return true;
        }
        let rows = step.load().rows;
        let (running, speculator) = (&mut self.running, &mut self.speculator);
        let suspect = running.iter().any(|s| s.suspect);
        let mut unread = running.iter_mut().filter(|s| s.unread > 0);
        let wants_draft = guarded(|| {
            for s in unread.by_ref() {
                if s.request.constraint.is_some() || (!suspect && speculator.wants_draft(s, rows)?) {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        wants_draft.unwrap_or_else(|error| {
            self.stop_drafting(&error);
            true
        })
    }

    /// Makes drafts for the sequences whose last token is read.
    pub fn draft(&mut self) {
        self.running.iter_mut().for_each(|s| s.draft.clear());
        if self.running.iter().any(|s| s.suspect) {
            return;
        }
        let started = Instant::now();
        let (running, speculator) = (&mut self.running[..], &mut self.speculator);
        let rows = running.iter().filter(|s| s.begun).count();
        if let Err(error) = guarded(|| speculator.draft(running, rows)) {
            let (model, info) = (&*self.model, &self.info);
            let uncertain = self.running.iter_mut().filter(|s| s.speculation.caches_in_use());
            uncertain.for_each(|s| s.restart(model, info));
            self.stop_drafting(&error);
        }
        self.running.iter_mut().for_each(Sequence::cut_draft);
        self.clock.drafting += started.elapsed().as_secs_f64() * 1e3;
    }

    /// Fails sequences whose constraint allows no token; updates what the others allow.
    pub fn fail_stuck(&mut self) {
        let mut stuck = vec![];
        for (i, s) in self.running.iter_mut().enumerate().filter(|(_, s)| s.request.constraint.is_some()) {
            match guarded(|| Ok(s.constrain())) {
                Ok(true) => {}
                Ok(false) => stuck.push((i, RequestError::NothingAllowed { generated: s.generated() })),
                Err(message) => stuck.push((i, RequestError::Step(message))),
            }
        }
        for (i, error) in stuck.into_iter().rev() {
            let sequence = self.running.remove(i);
            self.end(sequence, End::Failed(error));
        }
    }

    /// Passes the hidden states of a step to the drafters that read them. One that fails costs
    /// speed alone.
    pub fn publish_hidden(&mut self, hidden: Vec<(u64, HiddenRow)>) {
        for (id, HiddenRow { from, last, layers }) in hidden {
            let (running, speculator) = (&mut self.running, &mut self.speculator);
            let Some(s) = running.iter_mut().find(|s| s.id == id) else { continue };
            if let Err(error) = contained(|| speculator.observe(s.view(), from, last.as_ref(), &layers)) {
                return self.stop_drafting(&error);
            }
        }
    }

    /// Learns from a step that was read; `alone` if no other was queued on the device after it.
    pub fn learn(&mut self, load: Load, alone: bool) {
        self.options.metrics.stepped(load);
        let Some((ms, drafting)) = self.clock.lap() else { return };
        self.options.metrics.took(ms, drafting);
        let Load { decodes, rows, width, drafted, lossy } = load;
        // A step of fewer layers says nothing about whole ones.
        let decodes = decodes && !lossy;
        // The first step after a prompt takes longer: the processor's caches hold other data.
        let after_prompt = self.running.iter().any(|s| s.generated() > 0 && s.speculation.is_first_step());
        if decodes && !after_prompt {
            match drafted || alone {
                true => self.speculator.costs().record_step(rows, width, ms - drafting),
                false => self.speculator.costs().record_plain(rows, ms),
            }
        }
        // Delays by other programs are not the draft's fault.
        let expected = self.speculator.costs().batch(rows, width).unwrap_or(ms);
        let most = if after_prompt { expected } else { MAX_SLOWDOWN * expected };
        let ms = drafting + (ms - drafting).min(most);
        let views = self.running.iter_mut().map(DraftTarget::view);
        self.speculator.on_step(views, rows, decodes.then_some(ms), drafted);
    }

    /// A drafter failed: running sequences go on without drafts.
    pub fn stop_drafting(&mut self, error: &str) {
        tracing::error!("a drafter failed: {error}");
        for s in &mut self.running {
            s.draft.clear();
            s.speculation.stop();
        }
        let mut running = std::mem::take(&mut self.running);
        running.iter_mut().for_each(|s| self.release(&mut s.speculation));
        self.running = running;
    }

    /// Releases what drafters keep of a sequence that ended or restarts.
    pub fn release(&mut self, speculation: &mut SequenceSpeculation) {
        let speculator = &mut self.speculator;
        if let Err(error) = contained(|| speculator.release(speculation)) {
            tracing::error!("a drafter failed to release a sequence: {error}");
        }
    }
}
