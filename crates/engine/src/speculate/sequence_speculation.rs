//! The speculation state of one sequence: its mode, statistics, and what drafters keep of it.

use std::{rc::Rc, sync::Arc};

use super::{
    acceptance::POSITIONS,
    controller::SequenceStats,
    drafter::{Draft, DrafterState},
};
use crate::api::{Drafted, Drafts};

#[derive(Debug)]
pub(crate) struct SequenceSpeculation {
    pub(super) mode: SpeculationMode,
    /// Drafter and confidence bin of the draft in flight.
    pub(super) source: (usize, usize),
    /// Drafted and accepted tokens, by drafter.
    pub(super) counts: Vec<Drafted>,
    /// The same over all sequences.
    pub(super) drafts: Rc<[Arc<Drafts>]>,
    /// Tokens drafted and accepted in the last step, until the controller has learned from it.
    pub(super) verified: Option<(usize, usize)>,
    /// Generated tokens that the controller knows of.
    pub(super) num_reported: usize,
    pub(super) stats: SequenceStats,
    /// A free draft that was not verified: the tokens that follow show how much of it was right.
    pub(super) unused: Option<UnusedDraft>,
    /// Layers that a lossy sequence skips after its prompt, once they are known.
    pub(super) skipped_layers: Option<Rc<[usize]>>,
    /// By drafter.
    pub(super) states: Vec<DrafterState>,
    /// A drafter computes on the sequence's caches, or failed while it did: their contents are
    /// uncertain.
    pub(super) caches_in_use: bool,
}

#[derive(Debug)]
pub(super) struct UnusedDraft {
    pub(super) drafter: usize,
    pub(super) draft: Draft,
    /// Number of tokens before the draft.
    pub(super) position: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpeculationMode {
    Off,
    Auto,
    Fixed {
        drafter: usize,
        depth: usize,
    },
    /// No drafts; some layers are skipped.
    Lossy,
}

impl SequenceSpeculation {
    /// Counts a verified draft.
    pub(crate) fn on_verified(&mut self, drafted: usize, accepted: usize) {
        let counts = &mut self.counts[self.source.0];
        (counts.drafted, counts.accepted) = (counts.drafted + drafted, counts.accepted + accepted);
        let drafts = &self.drafts[self.source.0];
        drafts.drafted.add(drafted);
        drafts.accepted.add(accepted);
        self.verified = Some((drafted, accepted));
    }

    /// Turns drafting off for good: a drafter has failed.
    pub(crate) fn stop(&mut self) {
        if !self.is_lossy() {
            self.mode = SpeculationMode::Off;
        }
    }

    /// Whether layers are skipped after the prompt.
    pub(crate) fn is_lossy(&self) -> bool {
        self.mode == SpeculationMode::Lossy
    }

    /// Set once, before the sequence starts, so that it gives the same answer if it restarts.
    pub(crate) fn set_skipped_layers(&mut self, layers: Rc<[usize]>) {
        self.skipped_layers = Some(layers);
    }

    /// Whether the sequence cannot start because the layers to skip are not known yet.
    pub(crate) fn waits_for_layers(&self) -> bool {
        self.is_lossy() && self.skipped_layers.is_none()
    }

    pub(crate) fn skipped_layers(&self) -> &[usize] {
        self.skipped_layers.as_deref().unwrap_or_default()
    }

    /// Whether the controller chooses drafts.
    pub(crate) fn is_auto(&self) -> bool {
        self.mode == SpeculationMode::Auto
    }

    /// Whether there are no drafts.
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.mode, SpeculationMode::Off | SpeculationMode::Lossy)
    }

    /// Whether the controller has not learned from more than the first generated token.
    pub(crate) fn is_first_step(&self) -> bool {
        self.num_reported <= 1
    }

    /// Whether a drafter failed while it computed on the sequence's caches.
    pub(crate) fn caches_in_use(&self) -> bool {
        self.caches_in_use
    }

    /// The sequence has new caches.
    pub(crate) fn on_restart(&mut self) {
        self.caches_in_use = false;
    }

    /// Counts of the drafters that drafted anything.
    pub(crate) fn report(&self) -> Vec<Drafted> {
        self.counts.iter().filter(|counts| counts.drafted > 0).copied().collect()
    }

    /// Remembers the first unused draft to compare it with the tokens that follow, unless an
    /// earlier one is still being compared.
    pub(super) fn remember_unused(&mut self, used: bool, drafts: Vec<(usize, Draft)>, position: usize) {
        if used {
            self.unused = None;
        }
        if let (None, Some((drafter, mut draft))) = (&self.unused, drafts.into_iter().next()) {
            // Later positions share the statistics of the last one.
            draft.tokens.truncate(POSITIONS);
            self.unused = Some(UnusedDraft { drafter, draft, position });
        }
    }
}
