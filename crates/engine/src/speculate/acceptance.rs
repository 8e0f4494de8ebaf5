//! Acceptance rates of drafted tokens, by position in the draft and by confidence of the drafter.

use super::MAX_DEPTH;

/// Confidence bins of drafts.
pub(super) const CONFIDENCE_BINS: usize = 6;
/// Stands for the bin of a draft that is not made yet.
pub(super) const ANY_BIN: usize = CONFIDENCE_BINS;
/// Positions in a draft with statistics of their own; later ones share the last.
pub(super) const POSITIONS: usize = 8;
/// Weight of a sequence's past drafts when another one is verified.
pub(super) const SEQUENCE_DECAY: f64 = 0.95;

/// Weight of the drafts of past answers to similar prompts in another answer.
const ANSWER_DECAY: f64 = 0.8;

/// Maximum tokens of a free drafter's first draft in a sequence. A long draft that is rejected
/// costs several plain steps, and what was accepted in other texts says little about this one.
pub(super) const FIRST_DEPTH: usize = 3;

/// Acceptance of a drafter for each confidence bin, and at [`ANY_BIN`] for all of them together.
pub(super) type AcceptanceByBin = [AcceptanceRate; CONFIDENCE_BINS + 1];

/// How often a drafted token is accepted if those before it are, by position in the draft.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptanceRate {
    /// Weights of verified and of accepted tokens.
    positions: [(f64, f64); POSITIONS],
}

impl AcceptanceRate {
    /// Adds a draft of which the first `accepted` of `drafted` tokens were accepted; older data
    /// decays by `decay`. The last position decays only once per draft: otherwise one long draft
    /// would erase it.
    pub(crate) fn record(&mut self, drafted: usize, accepted: usize, decay: f64) {
        for position in 0..drafted.min(accepted + 1) {
            let (verified, right) = &mut self.positions[position.min(POSITIONS - 1)];
            let decay = if position < POSITIONS { decay } else { 1.0 };
            *verified = *verified * decay + 1.0;
            *right = *right * decay + f64::from(position < accepted);
        }
    }

    /// Weights of verified and of accepted first tokens.
    #[cfg(test)]
    pub(crate) fn first(&self) -> (f64, f64) {
        self.positions[0]
    }

    /// The same data with less weight.
    pub(crate) fn scaled(&self, weight: f64) -> AcceptanceRate {
        AcceptanceRate {
            positions: self.positions.map(|(verified, accepted)| (verified * weight, accepted * weight)),
        }
    }

    /// Rate at `position`, with a prior that weighs as much as `prior_weight` tokens.
    pub(crate) fn estimate(&self, position: usize, prior: f64, prior_weight: f64) -> f64 {
        let (verified, accepted) = self.positions[position.min(POSITIONS - 1)];
        (accepted + prior * prior_weight) / (verified + prior_weight)
    }
}

/// How a drafter has done in one sequence.
#[derive(Clone, Debug)]
pub(super) struct DrafterRecord {
    pub acceptance: AcceptanceByBin,
    /// Maximum tokens of its next draft, if its drafts are free.
    pub depth_limit: usize,
    /// Number of its verified drafts; those of past answers weigh less.
    pub num_drafts: f64,
}

impl Default for DrafterRecord {
    fn default() -> DrafterRecord {
        DrafterRecord { acceptance: AcceptanceByBin::default(), depth_limit: FIRST_DEPTH, num_drafts: 0.0 }
    }
}

impl DrafterRecord {
    /// The same record in a later answer: it weighs less, so that a drafter that failed once is
    /// tried again.
    pub(super) fn aged(&self) -> DrafterRecord {
        let acceptance = self.acceptance.each_ref().map(|rate| rate.scaled(ANSWER_DECAY));
        DrafterRecord { acceptance, num_drafts: ANSWER_DECAY * self.num_drafts, ..*self }
    }

    /// A draft was verified: the limit doubles when all of it was accepted, and otherwise halves
    /// down to twice what was.
    pub(super) fn on_verified(&mut self, drafted: usize, accepted: usize) {
        self.num_drafts += 1.0;
        let proven = (2 * accepted + 1).min(MAX_DEPTH);
        self.depth_limit = match accepted == drafted {
            true => self.depth_limit.max(proven),
            false => (self.depth_limit / 2).max(proven).clamp(FIRST_DEPTH, self.depth_limit),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_limit_follows_accepted_drafts() {
        let mut record = DrafterRecord::default();
        let mut limit = |drafted, accepted| {
            record.on_verified(drafted, accepted);
            record.depth_limit
        };
        assert_eq!([limit(3, 2), limit(3, 3), limit(2, 2), limit(7, 7), limit(15, 15)], [3, 7, 7, 15, 31]);
        assert_eq!([limit(31, 20), limit(31, 0), limit(15, 0), limit(7, 1), limit(7, 0)], [31, 15, 7, 3, 3]);
    }

    #[test]
    fn acceptance_of_the_last_position_decays_once_per_draft() {
        let mut rate = AcceptanceRate::default();
        // At the last position three accepted tokens and a rejected one, then 24 accepted ones.
        rate.record(31, POSITIONS + 2, 0.5);
        assert_eq!(rate.positions[POSITIONS - 1], (4.0, 3.0));
        rate.record(31, 31, 0.5);
        assert_eq!(rate.positions[POSITIONS - 1], (26.0, 25.5));
        assert_eq!(rate.positions[0], (1.5, 1.5));
    }
}
