//! Token sets of constrained sequences, computed on worker threads while the model computes the
//! step that samples with them. Knows nothing of models and steps.

mod follower;
mod strand;
#[cfg(test)]
mod tests;
mod workers;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use self::strand::{Answers, Command, Strand};
pub(crate) use self::workers::MaskWorkers;
use crate::api::{Constraint, TokenSet};

/// If a step waited longer than this for a sequence's sets, the sequence misses steps until its
/// sets are ready, so that others need not wait.
const SLOW: Duration = Duration::from_millis(2);

/// The engine thread's side of one sequence's constraint.
pub(crate) struct SequenceMasks {
    strand: Arc<Strand>,
    workers: MaskWorkers,
    /// Number of generated tokens passed to the constraint; `None` before the first call.
    known: Option<usize>,
    /// Whether the sets of this round are ordered.
    ordered: bool,
    /// Whether they are those after the token that follows the known ones.
    ahead: bool,
    /// Whether a step waited long for its sets, and computing them still takes long.
    slow: bool,
}

/// Tokens that the constraint allows after the known tokens and after each drafted one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Masks {
    pub sets: Vec<TokenSet>,
    /// Why the constraint failed; sets from there on are empty.
    pub error: Option<String>,
}

impl SequenceMasks {
    pub(crate) fn new(constraint: Arc<dyn Constraint>, workers: MaskWorkers) -> SequenceMasks {
        let strand = Arc::new(Strand::new(constraint));
        SequenceMasks { strand, workers, known: None, ordered: false, ahead: false, slow: false }
    }

    /// Passes the generated tokens so far to the constraint.
    pub(crate) fn follow(&mut self, generated: &[u32]) {
        if self.known == Some(generated.len()) && !self.ahead {
            return;
        }
        let new = generated[self.known.unwrap_or(0)..].to_vec();
        self.known = Some(generated.len());
        self.begin_round(Command::Follow(new));
    }

    /// Orders the set after the unread token that follows the generated ones; `false` if that set
    /// depends on the unread token, or finding it takes long.
    pub(crate) fn order_ahead(&mut self, generated: &[u32]) -> bool {
        if !self.workers.are_inline() {
            return false;
        }
        self.follow(generated);
        self.begin_round(Command::MasksAhead);
        (self.ordered, self.ahead) = (true, true);
        self.strand.wait(|answers| answers.known_ahead.take())
    }

    /// At most `max` tokens that must come next.
    pub(crate) fn forced(&mut self, max: usize) -> Vec<u32> {
        self.post(Command::Forced(max));
        self.strand.wait(|answers| answers.forced.take())
    }

    /// Sets the draft after the known tokens; returns how many of its tokens are allowed.
    pub(crate) fn draft(&mut self, tokens: &[u32]) -> usize {
        self.begin_round(Command::Draft(tokens.to_vec()));
        self.strand.wait(|answers| answers.drafted.take())
    }

    /// Orders the sets for the known tokens and the draft, once.
    pub(crate) fn order(&mut self) {
        if self.known.is_some() && !std::mem::replace(&mut self.ordered, true) {
            self.post(Command::Masks);
        }
    }

    /// Whether a step with this sequence would wait long.
    pub(crate) fn is_late(&self) -> bool {
        self.slow && !self.strand.has_masks()
    }

    /// The ordered sets; waits for them.
    pub(crate) fn get(&mut self) -> Masks {
        self.order();
        let started = Instant::now();
        let (masks, time) = self.strand.wait(|answers: &mut Answers| answers.masks.clone());
        match started.elapsed() > SLOW {
            true => self.slow = true,
            false => self.slow &= time > SLOW,
        }
        masks
    }

    fn begin_round(&mut self, command: Command) {
        self.strand.begin_round();
        (self.ordered, self.ahead) = (false, false);
        self.post(command);
    }

    fn post(&self, command: Command) {
        self.workers.post(&self.strand, command);
    }
}
