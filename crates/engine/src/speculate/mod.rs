//! Speculative decoding: drafters propose tokens; a controller decides whether drafting pays.
//! Accepting tokens is left to the step, which computes what plain decoding would have chosen.

mod acceptance;
mod calibration;
mod controller;
mod costs_file;
mod draft_latency;
mod draft_target;
pub(crate) mod drafter;
pub(crate) mod drafters;
mod sequence_speculation;
mod similar_prompts;
mod speculator;
pub(crate) mod step_costs;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    calibration::{measure_step_costs, warm_up},
    costs_file::{COSTS_FILE, load_or_measure_costs},
    draft_target::{DraftTarget, TargetView},
    drafter::Drafter,
    drafters::{
        layer_skip::{LAYER_SKIP, LayerSkip},
        scripted::ScriptedDrafter,
    },
    sequence_speculation::SequenceSpeculation,
    speculator::{HiddenCapture, Speculator},
};
pub use self::{drafters::scripted::Script, step_costs::StepTimes};

pub(crate) use crate::api::MAX_DEPTH;
/// Maximum drafted tokens in a step, over all its rows.
pub(crate) const MAX_STEP_DRAFT: usize = 32;

// A window cache keeps at least a draft's tokens before its window.
const _: () = assert!(MAX_DEPTH < crate::cache::REWINDABLE as usize);
