//! Speculation on the engine's thread: when a step has to be read before the next is built, who drafts in between, and
//! what is learnt from it.

use std::time::{Duration, Instant};

use crate::{
    request::{Request, RequestError},
    row::HiddenRow,
    run::{Runner, guarded},
    sequence::{End, Sequence},
    step::Load,
};

use super::SequenceSpeculation;

/// So many times what a step of its width takes, one takes no longer by itself.
const HELD_UP: f64 = 1.5;

/// When the last step was read, and what was known of it.
#[derive(Default)]
pub struct Clock {
    read: Option<Instant>,
    /// Milliseconds that drafting took since.
    drafting: f64,
}

impl Clock {
    /// Nothing is on its way: what comes next takes as long as it takes from here on.
    pub fn restart(&mut self) {
        *self = Clock { read: Some(Instant::now()), drafting: 0.0 };
    }

    /// Excludes time that was spent on other work than steps.
    fn leave_out(&mut self, time: Duration) {
        self.read = self.read.map(|read| read + time);
    }

    /// Milliseconds since the step before was read, and those of drafting among them.
    fn lap(&mut self) -> Option<(f64, f64)> {
        let (before, drafting) = (self.read, self.drafting);
        self.restart();
        Some((before?.elapsed().as_secs_f64() * 1e3, drafting))
    }
}

impl Runner {
    /// A new sequence's part in it. Missing measurements are made [between steps](Runner::measure_some).
    pub fn speculate_on(&mut self, request: &Request) -> SequenceSpeculation {
        let mut speculation = self.speculator.begin(request);
        if speculation.is_auto() {
            self.speculator.prepare(&*self.model);
        }
        if speculation.is_lossy()
            && let Some(layers) = self.speculator.skippable_layers()
        {
            speculation.leave_out(layers);
        }
        speculation
    }

    /// Makes a slice of the measurements that requests asked for, so that no stream waits long. Lossy sequences begin when the
    /// profile is complete; others decode without it.
    pub fn measure_some(&mut self) {
        if !self.speculator.is_measuring() {
            return;
        }
        // A step on the device would be measured with it.
        self.collect_launched(&[]);
        let started = Instant::now();
        let (model, speculator) = (&*self.model, &mut self.speculator);
        if let Err(error) = guarded(|| speculator.measure_some(model)) {
            tracing::warn!("what drafts cost, or are made without, could not be measured: {error}");
        }
        self.clock.leave_out(started.elapsed());
        let waiting = self.running.iter_mut().filter(|s| s.speculation.waits_for_layers());
        for s in waiting {
            let Some(layers) = self.speculator.skippable_layers() else { return };
            s.speculation.leave_out(layers);
        }
    }

    /// Whether the step on the device has to be read before the next is built: because somebody's next token depends on
    /// how far a draft was right, or on what a constraint says of the token before, or because a draft is worth it. On the
    /// CPU it always is: a step that was launched is computed.
    pub fn must_read(&mut self) -> bool {
        let Some(step) = &self.launched else { return false };
        if step.has_drafts() || !mlx::on_gpu() {
            return true;
        }
        let rows = step.load().rows;
        let (running, speculator) = (&mut self.running, &mut self.speculator);
        let suspect = running.iter().any(|s| s.suspect);
        let mut unread = running.iter_mut().filter(|s| s.unread > 0);
        let wants = guarded(|| {
            for s in unread.by_ref() {
                if s.request.constraint.is_some() || (!suspect && speculator.wants(s, rows)?) {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        wants.unwrap_or_else(|error| {
            self.stop_speculating(&error);
            true
        })
    }

    /// Has drafts made for those whose last token is read.
    pub fn draft(&mut self) {
        self.running.iter_mut().for_each(|s| s.draft.clear());
        if self.running.iter().any(|s| s.suspect) {
            return;
        }
        let started = Instant::now();
        let (running, speculator) = (&mut self.running[..], &mut self.speculator);
        if let Err(error) = guarded(|| speculator.draft(running)) {
            let (model, info) = (&*self.model, &self.info);
            self.running.iter_mut().filter(|s| s.lent).for_each(|s| s.restart(model, info));
            self.stop_speculating(&error);
        }
        self.running.iter_mut().for_each(Sequence::cut_draft);
        self.clock.drafting += started.elapsed().as_secs_f64() * 1e3;
    }

    /// Fails sequences whose constraint allows nothing; the others know what it allows.
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

    /// Shows drafters the hidden states they want to see. One that fails costs speed alone.
    pub fn show(&mut self, hidden: Vec<(u64, HiddenRow)>) {
        for (id, HiddenRow { from, last, layers }) in hidden {
            let (running, speculator) = (&self.running, &mut self.speculator);
            let Some(s) = running.iter().find(|s| s.id == id) else { continue };
            let observe = || {
                speculator.observe(s, from, last.as_ref(), &layers);
                Ok(())
            };
            if let Err(error) = guarded(observe) {
                return self.stop_speculating(&error);
            }
        }
    }

    /// Learns from a step that was read; `alone` if no other was on the device behind it.
    pub fn learn(&mut self, load: Load, alone: bool) {
        self.options.metrics.stepped(load);
        let Some((ms, drafting)) = self.clock.lap() else { return };
        self.options.metrics.took(ms, drafting);
        let Load { decodes, rows, width, drafted, lossy } = load;
        // What takes a part of the model says nothing of what takes all of it.
        let decodes = decodes && !lossy;
        // The first step after a prompt takes longer: the processor's caches hold other things.
        let after_prompt = self.running.iter().any(|s| s.generated() > 0 && s.speculation.counted <= 1);
        if decodes && !after_prompt {
            match drafted || alone {
                true => self.speculator.costs().record_step(rows, width, ms - drafting),
                false => self.speculator.costs().record_plain(rows, ms),
            }
        }
        // Who held the whole machine up is not to be held against the draft.
        let usual = self.speculator.costs().batch(rows, width).unwrap_or(ms);
        let most = if after_prompt { usual } else { HELD_UP * usual };
        let ms = drafting + (ms - drafting).min(most);
        self.speculator.passed(&mut self.running, rows, decodes.then_some(ms), drafted);
    }

    /// A drafter failed: sequences that run go on without any.
    pub fn stop_speculating(&mut self, error: &str) {
        tracing::error!("a drafter failed: {error}");
        for s in &mut self.running {
            s.draft.clear();
            s.speculation.stop();
        }
        let running: Vec<u64> = self.running.iter().map(|s| s.id).collect();
        running.into_iter().for_each(|id| self.forget(id));
    }
}
