//! Requests that reached the head of the queue and wait for memory.

use super::{sequence::Sequence, submission::Submission};
use crate::api::Priority;

pub(crate) enum Candidate {
    New(Box<Submission>),
    /// Preempted: its state made room for another's and is computed again.
    Preempted(Box<Sequence>),
}

pub(crate) struct Deferred {
    pub candidate: Candidate,
    /// More urgent requests admitted since.
    overtaken: usize,
}

impl Candidate {
    pub(crate) fn submission(&self) -> &Submission {
        match self {
            Candidate::New(submission) => submission,
            Candidate::Preempted(sequence) => sequence.submission(),
        }
    }

    pub(crate) fn priority(&self) -> Priority {
        self.submission().request.priority
    }

    /// Most urgent first, then the one admitted first.
    pub(crate) fn rank(&self) -> (usize, u64) {
        let id = match self {
            Candidate::New(_) => u64::MAX,
            Candidate::Preempted(sequence) => sequence.id,
        };
        (self.priority() as usize, id)
    }
}

impl Deferred {
    pub(crate) fn new(candidate: Candidate) -> Deferred {
        Deferred { candidate, overtaken: 0 }
    }

    /// Counts the admission of a request of priority `by`.
    pub(crate) fn overtake(&mut self, by: Priority) {
        self.overtaken += usize::from(self.candidate.priority() as usize > by as usize);
    }

    /// Whether no request may overtake it any more: it was overtaken once for each turn that the
    /// queue gives to more urgent classes before its own.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overtaken >= self.candidate.priority().stride()
    }
}
