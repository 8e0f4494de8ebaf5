//! Acceptance rates of drafted tokens, by position in the draft and by confidence of the drafter.

/// Confidence bins of drafts.
pub(super) const CONFIDENCE_BINS: usize = 6;
/// Stands for the bin of a draft that is not made yet.
pub(super) const ANY_BIN: usize = CONFIDENCE_BINS;
/// Positions in a draft with statistics of their own; later ones share the last.
pub(super) const POSITIONS: usize = 8;
/// Weight of a sequence's past drafts when another one is verified.
pub(super) const SEQUENCE_DECAY: f64 = 0.95;

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

#[cfg(test)]
mod tests {
    use super::*;

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
