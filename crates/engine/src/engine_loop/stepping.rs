//! Launching steps and reading their results.

use super::{
    fault,
    run::EngineLoop,
    schedule::{Demand, Scheduled, schedule, schedule_whole},
    sequence::Sequence,
    step::Step,
};
use crate::{
    api::Priority,
    guard::{contained, guarded},
    masks::SequenceMasks,
};

impl EngineLoop {
    pub(crate) fn schedule(&self) -> Vec<Scheduled> {
        fault::point("schedule");
        // A quarantined sequence runs alone.
        let quarantined = self.running.iter().position(|s| s.quarantined);
        let demand = |(i, s): (usize, &Sequence)| match quarantined {
            Some(only) if only != i => (Demand::Nothing, s.request.priority),
            _ => (s.demand(), s.request.priority),
        };
        let mut demands: Vec<(Demand, Priority)> = self.running.iter().enumerate().map(demand).collect();
        self.skip_late(&mut demands);
        let mut scheduled = match self.info.is_encoder {
            true => schedule_whole(&demands, self.options.prefill_chunk),
            false => schedule(&demands, self.options.prefill_chunk.max(1)),
        };
        for Scheduled { sequence, num_tokens } in &mut scheduled {
            *num_tokens = self.running[*sequence].with_whole_images(*num_tokens);
        }
        scheduled
    }

    /// Lets sequences whose masks take long miss the step, unless no other sequence has work.
    fn skip_late(&self, demands: &mut [(Demand, Priority)]) {
        let is_late = |s: &Sequence| s.masks.as_ref().is_some_and(SequenceMasks::is_late);
        let late: Vec<bool> = self.running.iter().map(is_late).collect();
        let has_work =
            |(late, (demand, _)): (&bool, &(Demand, Priority))| !late && *demand != Demand::Nothing;
        if late.iter().zip(&*demands).any(has_work) {
            let late = demands.iter_mut().zip(late).filter(|(_, late)| *late);
            late.for_each(|((demand, _), _)| *demand = Demand::Nothing);
        }
    }

    /// Launches the scheduled step unless `memory` is an error, then reads the step before it.
    pub(crate) fn launch_and_collect(&mut self, scheduled: &[Scheduled], memory: Result<(), String>) {
        let next_ids: Vec<u64> = scheduled.iter().map(|s| self.running[s.sequence].id).collect();
        let next = match memory {
            _ if scheduled.is_empty() => Ok(None),
            Ok(()) => self.launch(scheduled).map(Some),
            Err(message) => Err(message),
        };
        let alone = self.running.iter().any(|s| s.quarantined);
        match next {
            Err(message) => {
                let mut involved = next_ids;
                if let Some(step) = self.launched.take() {
                    involved.extend(step.sequences());
                    step.abandon();
                }
                self.fail(involved, message);
            }
            Ok(next) => {
                let queued = self.launched.is_some() && next.is_some();
                self.options.metrics.queued_steps.add(usize::from(queued));
                if self.collect_launched(&next_ids) {
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

    fn launch(&mut self, scheduled: &[Scheduled]) -> Result<Step, String> {
        let (model, running, prefix) = (&*self.model, &mut self.running[..], &self.prefix);
        let capture = &self.hidden_capture;
        guarded(|| Step::launch(model, running, scheduled, prefix, capture))
    }

    /// Reads the launched step; another one with the sequences `next` may be on the device already.
    /// `false` if it failed: then every sequence with state in flight starts over.
    pub(crate) fn collect_launched(&mut self, next: &[u64]) -> bool {
        let Some(step) = self.launched.take() else { return true };
        let shape = step.shape();
        let involved: Vec<u64> = step.sequences().chain(next.iter().copied()).collect();
        let (running, ended, info) = (&mut self.running, &mut self.ended, &self.info);
        match guarded(|| step.collect(running, ended, info)) {
            Ok(output) => {
                if let Err(error) = contained(|| self.learn(shape, next.is_empty())) {
                    self.stop_drafting(&error);
                }
                self.publish_hidden(output.hidden);
                output.ended.into_iter().for_each(|(sequence, end)| self.end(sequence, end));
                output.copied.into_iter().for_each(|(tokens, copied)| self.store(&tokens, copied));
                true
            }
            Err(message) => {
                self.fail(involved, message);
                false
            }
        }
    }
}
