//! Speculation in the engine loop: when a step has to be read before the next is built, the drafts
//! made in between, and the measurements of them.

use std::time::Instant;

use super::{row::HiddenRow, run::EngineLoop, sequence::Sequence, step_shape::StepShape};
use crate::{
    api::Request,
    guard::{contained, guarded},
    speculate::{DraftTarget, SequenceSpeculation, TargetView},
};

/// A step that takes this many times as long as expected was slowed down by other programs.
const MAX_SLOWDOWN: f64 = 1.5;

impl DraftTarget for Sequence {
    fn view(&mut self) -> TargetView<'_> {
        let max_draft = self.max_draft_tokens();
        let Sequence { request, tokens, draft, caches, speculation, .. } = self;
        TargetView { request, tokens, forced: &draft.forced, max_draft, caches, speculation }
    }

    fn can_take_draft(&self) -> bool {
        self.can_verify_draft()
    }

    fn take_draft(&mut self, tokens: Vec<u32>) -> usize {
        self.set_draft(tokens);
        self.draft.tokens.len()
    }
}

impl EngineLoop {
    /// The speculation state of a new sequence. Missing measurements are made [between
    /// steps](EngineLoop::measure_slice).
    pub(crate) fn new_speculation(&mut self, request: &Request) -> SequenceSpeculation {
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
    pub(crate) fn measure_slice(&mut self) {
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
    /// depends on how much of a draft is accepted, a draft pays, or what a constraint allows next
    /// depends on the unread token. A step that is computed already is read as well: on the CPU
    /// that is every one.
    pub(crate) fn must_read(&mut self) -> bool {
        let Some(step) = &self.launched else { return false };
        let gains = || !step.was_awaited() && mlx::runs_ahead();
        if step.has_drafts() || !self.options.queue_ahead.unwrap_or_else(gains) {
            return true;
        }
        let rows = step.shape().rows;
        let (running, speculator) = (&mut self.running, &mut self.speculator);
        let quarantine = running.iter().any(|s| s.quarantined);
        let mut unread = running.iter_mut().filter(|s| s.progress.num_unread > 0);
        let wants_draft = guarded(|| {
            for s in unread.by_ref() {
                if !s.order_masks_ahead() || (!quarantine && speculator.wants_draft(s, rows)?) {
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
    pub(crate) fn draft(&mut self) {
        self.running.iter_mut().for_each(|s| s.draft.tokens.clear());
        if self.running.iter().any(|s| s.quarantined) {
            return;
        }
        let started = Instant::now();
        self.running.iter_mut().for_each(Sequence::force);
        let (running, speculator) = (&mut self.running[..], &mut self.speculator);
        let rows = running.iter().filter(|s| s.phase.is_running()).count();
        if let Err(error) = guarded(|| speculator.draft(running, rows)) {
            let (model, info) = (&*self.model, &self.info);
            let uncertain = self.running.iter_mut().filter(|s| s.speculation.caches_in_use());
            uncertain.for_each(|s| s.quarantine(model, info));
            self.stop_drafting(&error);
        }
        self.running.iter_mut().for_each(Sequence::truncate_draft);
        self.clock.add_drafting(started.elapsed());
    }

    /// Passes the hidden states of a step to the drafters that read them. A drafter that fails only
    /// costs speed.
    pub(crate) fn publish_hidden(&mut self, hidden: Vec<(u64, HiddenRow)>) {
        for (id, HiddenRow { from, last, layers }) in hidden {
            let (running, speculator) = (&mut self.running, &mut self.speculator);
            let Some(s) = running.iter_mut().find(|s| s.id == id) else { continue };
            if let Err(error) = contained(|| speculator.observe(s.view(), from, last.as_ref(), &layers)) {
                return self.stop_drafting(&error);
            }
        }
    }

    /// Learns from a step that was read; `alone` if no other was queued on the device after it.
    pub(crate) fn learn(&mut self, shape: StepShape, alone: bool) {
        self.options.metrics.record_step(shape);
        let Some((ms, drafting)) = self.clock.lap() else { return };
        self.options.metrics.record_time(ms, drafting);
        let StepShape { decodes, rows, width, drafted, lossy } = shape;
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

    /// A drafter failed: running sequences continue without drafts.
    pub(crate) fn stop_drafting(&mut self, error: &str) {
        tracing::error!("a drafter failed: {error}");
        for s in &mut self.running {
            s.draft.tokens.clear();
            s.speculation.stop();
        }
        let mut running = std::mem::take(&mut self.running);
        running.iter_mut().for_each(|s| self.release_drafts(&mut s.speculation));
        self.running = running;
    }

    /// Releases what drafters keep of a sequence that ended or restarts.
    pub(crate) fn release_drafts(&mut self, speculation: &mut SequenceSpeculation) {
        let speculator = &mut self.speculator;
        if let Err(error) = contained(|| speculator.release(speculation)) {
            tracing::error!("a drafter failed to release a sequence: {error}");
        }
    }
}
