//! What is known of one sequence's drafts: who makes them, how many were accepted, and what they cost.

use std::{rc::Rc, sync::Arc};

use super::{
    Draft,
    controller::{POSITIONS, SequenceStats},
};
use crate::{metrics::Drafts, request::Drafted};

/// A sequence's part in speculation.
#[derive(Debug)]
pub struct SequenceSpeculation {
    pub(super) mode: Mode,
    /// Who made the draft that is on its way, and of what grade.
    pub(super) source: (usize, usize),
    /// By drafter: tokens drafted, and accepted.
    pub(super) counts: Vec<Drafted>,
    /// The same of all sequences.
    pub(super) drafts: Rc<[Arc<Drafts>]>,
    /// Tokens drafted and accepted in the last step, which the controller has not heard of.
    pub(super) judged: Option<(usize, usize)>,
    /// Tokens generated when the controller last heard of it.
    pub(super) counted: usize,
    pub(super) stats: SequenceStats,
    /// A free draft that was not verified: the tokens that follow show how far it was right.
    pub(super) unused: Option<Unused>,
    /// Layers that the sequence skips after its prompt, once they are known; only if it is lossy.
    pub(super) skipped_layers: Option<Rc<[usize]>>,
}

#[derive(Debug)]
pub(super) struct Unused {
    pub(super) drafter: usize,
    pub(super) draft: Draft,
    /// Tokens before it.
    pub(super) at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Off,
    Auto,
    Fixed {
        drafter: usize,
        depth: usize,
    },
    /// Nobody drafts, and some layers are left out.
    Lossy,
}

impl SequenceSpeculation {
    /// Of a draft so many tokens were accepted.
    pub fn judged(&mut self, drafted: usize, accepted: usize) {
        let counts = &mut self.counts[self.source.0];
        (counts.drafted, counts.accepted) = (counts.drafted + drafted, counts.accepted + accepted);
        let drafts = &self.drafts[self.source.0];
        drafts.drafted.add(drafted);
        drafts.accepted.add(accepted);
        self.judged = Some((drafted, accepted));
    }

    /// Never again: a drafter has failed.
    pub fn stop(&mut self) {
        if !self.is_lossy() {
            self.mode = Mode::Off;
        }
    }

    /// Whether layers are left out behind the prompt.
    pub fn is_lossy(&self) -> bool {
        self.mode == Mode::Lossy
    }

    /// Which ones; set once, before the sequence begins, so that it says the same if it has to begin again.
    pub fn leave_out(&mut self, layers: Rc<[usize]>) {
        self.skipped_layers = Some(layers);
    }

    /// Whether they are not known yet: then it cannot begin.
    pub fn waits_for_layers(&self) -> bool {
        self.is_lossy() && self.skipped_layers.is_none()
    }

    pub fn skipped_layers(&self) -> &[usize] {
        self.skipped_layers.as_deref().unwrap_or_default()
    }

    /// Keeps the first unused draft to compare it with the tokens that follow, unless an earlier one is still being compared.
    pub(super) fn leave_unused(&mut self, used: bool, drafts: Vec<(usize, Draft)>, at: usize) {
        if used {
            self.unused = None;
        }
        if let (None, Some((drafter, mut draft))) = (&self.unused, drafts.into_iter().next()) {
            // Later places share the last one's data.
            draft.tokens.truncate(POSITIONS);
            self.unused = Some(Unused { drafter, draft, at });
        }
    }

    /// Whether measurements decide.
    pub fn is_auto(&self) -> bool {
        self.mode == Mode::Auto
    }

    /// Whether nobody drafts.
    pub fn is_off(&self) -> bool {
        matches!(self.mode, Mode::Off | Mode::Lossy)
    }

    /// What was drafted, by those who drafted something.
    pub fn report(&self) -> Vec<Drafted> {
        self.counts.iter().filter(|counts| counts.drafted > 0).copied().collect()
    }
}
