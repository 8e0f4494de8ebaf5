//! The ends of sequences: finished, failed, cancelled, expired.

use std::time::Instant;

use super::{
    deferred::Candidate, delivery::End, fault, recovery::failure, run::EngineLoop, sequence::Sequence,
    submission::Submission,
};
use crate::{
    api::{Event, FinishReason, RequestError, Usage},
    guard::contained,
};

impl EngineLoop {
    /// Ends a sequence: its caller gets the final event and drafters forget it. Unless it failed,
    /// its state may still go into the prefix cache; its memory is free after that.
    pub(crate) fn end(&mut self, mut sequence: Sequence, end: End) {
        let is_sound = !matches!(&end, End::Failed(error) if *error != RequestError::TimeIsUp);
        let finished = matches!(end, End::Finished(_));
        let speculator = &mut self.speculator;
        let sent = contained(|| {
            fault::point("end");
            sequence.end(end);
            if finished {
                speculator.on_finished(&sequence.speculation, &sequence.request.prompt, sequence.generated());
            }
        });
        self.release_drafts(&mut sequence.speculation);
        match sent {
            Ok(()) if is_sound => self.ended.push(sequence),
            Ok(()) => {}
            Err(error) => {
                tracing::error!("ending a sequence failed: {error}");
                sequence.end(End::Failed(failure(error)));
            }
        }
    }

    /// Ends the waiting requests that `selects` selects.
    pub(crate) fn end_waiting(
        &mut self,
        selects: impl Fn(&Submission) -> bool,
        end: impl Fn(&Submission) -> End,
    ) {
        let mut selected = self.queue.extract(&selects);
        let deferred = self.deferred.extract_if(.., |deferred| selects(deferred.candidate.submission()));
        for deferred in deferred.collect::<Vec<_>>() {
            match deferred.candidate {
                Candidate::New(submission) => selected.push(*submission),
                Candidate::Preempted(sequence) => {
                    let end = end(sequence.submission());
                    self.end(*sequence, end);
                }
            }
        }
        for mut submission in selected {
            let event = match end(&submission) {
                End::Finished(reason) => {
                    let usage = Usage { prompt_tokens: submission.request.prompt.len(), ..Usage::default() };
                    Event::Finished { reason, usage }
                }
                End::Failed(error) => Event::Failed(error),
            };
            submission.send(event);
        }
    }

    pub(crate) fn drop_cancelled(&mut self) {
        let cancelled = || End::Finished(FinishReason::Cancelled);
        for sequence in self.running.extract_if(.., |s| s.is_cancelled()).collect::<Vec<_>>() {
            self.end(sequence, cancelled());
        }
        self.end_waiting(Submission::is_cancelled, |_| cancelled());
    }

    /// Fails requests whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        for sequence in self.running.extract_if(.., |s| s.request.is_late(now)).collect::<Vec<_>>() {
            self.end(sequence, End::Failed(RequestError::TimeIsUp));
        }
        self.end_waiting(|waiting| waiting.request.is_late(now), |_| End::Failed(RequestError::TimeIsUp));
    }

    /// Ends every request, and leaves nothing on the device.
    pub(crate) fn cancel_all(mut self) {
        self.store_all_finished();
        self.running.iter().for_each(Sequence::cancel);
        let deferred = self.deferred.iter().map(|deferred| deferred.candidate.submission());
        self.queue.iter().chain(deferred).for_each(Submission::cancel);
        self.drop_cancelled();
        self.collect_launched(&[]);
    }
}
