//! Drafts of the tokens to come: whoever proposes them, and who decides whether that is worth it. Nothing here accepts a
//! token; that is the step's business, which computes what plain decoding would have chosen.

mod calibration;
mod controller;
mod draft_latency;
pub mod drafters;
mod rounds;
mod sequence_speculation;
mod similar_prompts;
mod speculator;
mod step_costs;
#[cfg(test)]
mod tests;

use mlx::Array;

use self::controller::AcceptanceByBin;
pub use self::{
    calibration::{FILE as COSTS_FILE, StepProfiler, at_load, measure},
    drafters::{
        layer_profile::FILE as LAYER_PROFILE_FILE,
        layer_skip::{LayerSkip, NAME as LAYER_SKIP},
        scripted::{Script, ScriptedDrafter},
    },
    rounds::Clock,
    sequence_speculation::SequenceSpeculation,
    speculator::Speculator,
    step_costs::{StepCosts, StepTimes},
};
use crate::{cache::Lent, constrain::Constraint, request::Sampling};

/// Most tokens of a draft. What a window keeps beyond its own reach must hold as many.
pub const MAX_DEPTH: usize = 32;
/// Most drafted tokens in a step, of all its rows.
pub const MAX_STEP_DRAFT: usize = 32;

const _: () = assert!(MAX_DEPTH < crate::cache::REWINDABLE as usize);

/// Proposes tokens that are likely to come next. Wrong ones cost time, never the answer.
pub trait Drafter {
    /// How users name it.
    fn name(&self) -> &'static str;

    /// Whether proposing costs next to nothing, so that it may be asked without need.
    fn is_free(&self) -> bool {
        false
    }

    /// Which hidden states it wants to be [shown](Drafter::see).
    fn hidden(&self) -> HiddenSource<'_> {
        HiddenSource::None
    }

    /// Shown the hidden states of tokens that are there to stay, each once and in order unless the sequence began with
    /// what earlier ones left behind, or began again.
    fn observe(&mut self, _seen: &HiddenStates) {}

    /// How often a token of a draft is right, by grade, before anything is known.
    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        [0.6; CONFIDENCE_BINS]
    }

    /// Cost of a token of a draft beside that of a token of a plain step, until it is measured.
    fn relative_cost(&self) -> f64 {
        0.0
    }

    /// Most tokens of a draft, if it is made in one pass that costs the same for one token as for all.
    fn block_size(&self) -> Option<usize> {
        None
    }

    /// Given the tokens of a short text, to measure itself by when it is first asked.
    fn read(&mut self, _text: &[u32]) {}

    /// Whether it can be asked without having to measure itself first, which may take seconds.
    fn is_ready(&self) -> bool {
        true
    }

    /// Told that `auto` needs its costs: it may want to [measure](Drafter::measure) them.
    fn prepare(&mut self) {}

    /// Whether it has measurements to make that a request asked for.
    fn is_measuring(&self) -> bool {
        false
    }

    /// Makes the next slice of its measurements: about 20 ms, or the least that can be computed.
    ///
    /// # Errors
    /// Computing it failed; the measurement is not repeated.
    fn measure(&mut self) -> mlx::Result<()> {
        Ok(())
    }

    /// Its measurements in milliseconds, for [`restore`](Drafter::restore) at the next load; empty if it made none.
    fn measured(&self) -> Vec<f64> {
        vec![]
    }

    /// Takes the measurements of an earlier load.
    fn restore(&mut self, _found: &[f64]) {}

    /// Acceptance that its drafts would have had in a sequence's prompt, by grade; `None` if it cannot tell.
    fn prompt_acceptance(&self, _sequence: u64) -> Option<&AcceptanceByBin> {
        None
    }

    /// The layers that the model can best do without; `None` as long as that is being measured, or if it is not this drafter's
    /// business.
    fn skippable_layers(&mut self) -> Option<&[usize]> {
        None
    }

    /// Whether it computes on the sequences' own caches, and is asked to [`propose_on`](Drafter::propose_on) those.
    fn uses_target_cache(&self) -> bool {
        false
    }

    /// As [`propose`](Drafter::propose), with the sequences' caches: all their tokens but the last are in those.
    ///
    /// # Errors
    /// Computing one failed; the sequences begin again.
    fn propose_on(&mut self, asked: &[DraftRequest], _caches: Vec<Lent>) -> mlx::Result<Vec<Draft>> {
        self.propose(asked)
    }

    /// Milliseconds for each token of a draft, or for one [in one](Drafter::in_one), as measured when it was loaded; 0 if
    /// they were not.
    fn each(&self) -> f64 {
        0.0
    }

    /// Milliseconds of computing before it could draft what is asked for, which takes several rounds if they are many;
    /// `None` if it never will.
    fn catch_up_cost(&self, _asked: &DraftRequest) -> Option<f64> {
        Some(0.0)
    }

    /// A draft for each of some sequences; empty where it has no idea.
    ///
    /// # Errors
    /// Computing one failed.
    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>>;

    /// A sequence has ended, or begins again.
    fn forget(&mut self, _sequence: u64) {}
}

/// Hidden states of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenSource<'a> {
    None,
    /// Behind the final norm.
    Final,
    /// The residual stream behind some layers, in this order.
    Layers(&'a [usize]),
}

/// Hidden states that any drafter wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenCapture {
    /// Behind the final norm.
    pub last: bool,
    pub layers: Vec<usize>,
}

/// Hidden states of a sequence's tokens from position `from` on.
#[cfg_attr(not(test), expect(dead_code, reason = "for heads that predict several tokens"))]
pub struct HiddenStates<'a> {
    pub sequence: u64,
    /// Prompt and output, at least one token longer than what was computed.
    pub tokens: &'a [u32],
    pub from: usize,
    /// `[n, hidden_size]`: one, or one for each of the layers asked for.
    pub hidden: Vec<Array>,
}

/// A sequence for which a draft is wanted.
pub struct DraftRequest<'a> {
    pub sequence: u64,
    /// Prompt and output; the draft comes behind them.
    pub tokens: &'a [u32],
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Most tokens of the draft, at least one.
    pub depth: usize,
    /// A drafter that draws as the model does, with the noise of the same positions, guesses best.
    pub sampling: &'a Sampling,
    pub constraint: Option<&'a dyn Constraint>,
}

/// Tokens that may come next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    pub tokens: Vec<u32>,
    /// How good the drafter thinks it is, below [`CONFIDENCE_BINS`]: how often drafts of a grade are right is learnt. Only of drafts that
    /// are [free](Drafter::is_free) does anybody see it before it is decided whether to use them.
    pub grade: usize,
}

pub const CONFIDENCE_BINS: usize = 6;
