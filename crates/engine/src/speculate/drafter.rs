//! The interface of drafters, and small traits for what only some of them need.

use std::{any::Any, fmt};

use mlx::Array;

use super::acceptance::{AcceptanceByBin, CONFIDENCE_BINS};
use crate::{
    api::{CacheSalt, Sampling},
    cache::CacheGuard,
};

/// Proposes tokens that are likely to come next. Wrong ones cost time, never the answer.
pub(crate) trait Drafter {
    /// Name and properties. They may change when the drafter has measured itself.
    fn info(&self) -> DrafterInfo;

    /// Milliseconds of catching up that a draft would have to wait for, possibly over several
    /// rounds; `None` if this drafter cannot draft for the sequence.
    fn catch_up_cost(&self, _request: &DraftRequest) -> Option<f64> {
        Some(0.0)
    }

    /// A draft for each request; empty where there is nothing to propose.
    ///
    /// # Errors
    /// Computing one failed.
    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>>;

    fn hidden_observer(&mut self) -> Option<&mut dyn HiddenObserver> {
        None
    }

    fn calibrated(&mut self) -> Option<&mut dyn Calibrated> {
        None
    }

    fn layer_selection(&mut self) -> Option<&mut dyn LayerSelection> {
        None
    }

    fn prompt_replay(&self) -> Option<&dyn PromptReplay> {
        None
    }

    fn state_store(&mut self) -> Option<&mut dyn StateStore> {
        None
    }
}

/// A drafter that reads hidden states of the target model.
pub(crate) trait HiddenObserver {
    fn source(&self) -> HiddenSource<'_>;

    /// Receives the hidden states of accepted tokens: each once and in order, unless the sequence
    /// resumed from cached state or restarted.
    fn observe(&mut self, hidden: &HiddenStates, state: &mut DrafterState);
}

/// A drafter that measures itself, in slices between the steps of running requests.
pub(crate) trait Calibrated {
    /// Schedules the measurements that `auto` needs and that are missing.
    fn prepare(&mut self) {}

    /// Whether scheduled measurements are unfinished.
    fn is_measuring(&self) -> bool;

    /// Computes the next slice: about 20 ms, or the least possible.
    ///
    /// # Errors
    /// Computing it failed; the measurement is not repeated.
    fn measure(&mut self) -> mlx::Result<()>;

    /// Whether it can draft without measuring first, which may take seconds.
    fn is_ready(&self) -> bool {
        true
    }

    /// Measured milliseconds, for [`restore`](Calibrated::restore) at the next load; empty before
    /// they are complete.
    fn measurements(&self) -> Vec<f64> {
        vec![]
    }

    fn restore(&mut self, _measurements: &[f64]) {}
}

/// A drafter that knows which layers the target model can skip.
pub(crate) trait LayerSelection {
    /// Sets the tokens of a short text to measure layers on.
    fn set_calibration_text(&mut self, text: &[u32]);

    /// The least important layers; `None` while they are being measured.
    fn skippable_layers(&mut self) -> Option<&[usize]>;
}

/// A drafter that replays its drafts on the prompt.
pub(crate) trait PromptReplay {
    /// Acceptance that its drafts would have had in the prompt.
    fn acceptance<'a>(&self, state: &'a DrafterState) -> Option<&'a AcceptanceByBin>;
}

/// A drafter that reuses state of finished sequences.
pub(crate) trait StateStore {
    /// Takes the state of a sequence that finished or restarts.
    fn store(&mut self, state: DrafterState);
}

/// Name and properties of a drafter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrafterInfo {
    /// Name in flags, requests and metrics.
    pub name: &'static str,
    /// Whether proposing costs next to nothing, so that unused drafts are no loss.
    pub is_free: bool,
    /// Acceptance rate of a token by confidence bin, before any draft was verified.
    pub prior: [f64; CONFIDENCE_BINS],
    /// Cost of a drafted token relative to a plain step, until it is measured.
    pub relative_cost: f64,
    /// Milliseconds of a drafted token, or of a whole block, measured at load; 0 if not measured.
    pub latency: f64,
    /// Maximum tokens of a draft that takes one pass, whatever its length; `None` if each token
    /// takes a pass.
    pub block_size: Option<usize>,
    /// Whether it computes on the sequences' own caches.
    pub uses_target_cache: bool,
}

impl DrafterInfo {
    pub(crate) fn new(name: &'static str) -> DrafterInfo {
        DrafterInfo {
            name,
            is_free: false,
            prior: [0.6; CONFIDENCE_BINS],
            relative_cost: 0.0,
            latency: 0.0,
            block_size: None,
            uses_target_cache: false,
        }
    }
}

/// A sequence that a draft is wanted for.
pub(crate) struct DraftRequest<'a> {
    /// Prompt and output; the draft continues them.
    pub tokens: &'a [u32],
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Only sequences with the same salt share stored state.
    pub cache_salt: Option<CacheSalt>,
    /// Maximum tokens of the draft, at least one.
    pub depth: usize,
    /// Drafters sample as the model does, with the same noise at each position: more tokens match.
    pub sampling: &'a Sampling,
    /// Tokens that the request's constraint forces next.
    pub forced: &'a [u32],
    /// This drafter's state of the sequence.
    pub state: &'a mut DrafterState,
    /// The sequence's caches, with all tokens but the last; only for drafters that
    /// [use them](DrafterInfo::uses_target_cache).
    pub target_cache: Option<CacheGuard<'a>>,
}

#[cfg(test)]
impl<'a> DraftRequest<'a> {
    /// Without forced tokens and caches.
    pub(crate) fn new(
        tokens: &'a [u32],
        prompt: usize,
        depth: usize,
        sampling: &'a Sampling,
        state: &'a mut DrafterState,
    ) -> DraftRequest<'a> {
        DraftRequest {
            tokens,
            prompt,
            cache_salt: None,
            depth,
            sampling,
            forced: &[],
            state,
            target_cache: None,
        }
    }
}

/// A drafter's state of one sequence. Lives in the sequence and is dropped with it.
#[derive(Default)]
pub(crate) struct DrafterState(Option<Box<dyn Any>>);

impl DrafterState {
    pub(crate) fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_deref()?.downcast_ref()
    }

    pub(crate) fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()?.downcast_mut()
    }

    /// # Panics
    /// If the state is of another type: two drafters share it, which is a bug.
    pub(crate) fn get_or_insert_with<T: Any>(&mut self, new: impl FnOnce() -> T) -> &mut T {
        let state = self.0.get_or_insert_with(|| Box::new(new()));
        state.downcast_mut().unwrap_or_else(|| panic!("two drafters share the state of a sequence"))
    }

    pub(crate) fn take<T: Any>(&mut self) -> Option<T> {
        Some(*self.0.take()?.downcast().ok()?)
    }

    pub(crate) fn set<T: Any>(&mut self, state: T) {
        self.0 = Some(Box::new(state));
    }
}

impl fmt::Debug for DrafterState {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.0.is_some() { "DrafterState(..)" } else { "DrafterState" })
    }
}

/// Tokens that may come next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draft {
    pub tokens: Vec<u32>,
    /// The drafter's confidence, below [`CONFIDENCE_BINS`]; the acceptance of each bin is learned.
    /// Only [free](DrafterInfo::is_free) drafts are made before they are chosen, so only their bins
    /// are used in the choice.
    pub confidence_bin: usize,
}

/// Hidden states that a drafter reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HiddenSource<'a> {
    /// After the final norm.
    Final,
    /// The residual stream after each of these layers.
    Layers(&'a [usize]),
}

/// Hidden states of a sequence's tokens from position `from` on.
#[cfg_attr(not(test), expect(dead_code, reason = "for heads that predict several tokens"))]
pub(crate) struct HiddenStates<'a> {
    /// Prompt and output: at least one token more than was computed.
    pub tokens: &'a [u32],
    pub from: usize,
    /// `[n, hidden_size]`: one, or one for each layer of the [source](HiddenSource::Layers).
    pub hidden: Vec<Array>,
}
