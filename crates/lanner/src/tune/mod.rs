//! `lanner tune`: what this machine computes in which time, what fits into its memory, and which
//! settings follow. Speeds are predicted from headers and from small random models that the engine
//! runs here, and shown beside those of models that were measured.

mod advice;
mod calibration;
mod catalog;
mod chips;
mod measure;
mod predict;
mod report;
mod room;
mod survey;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    advice::{Setting, advice},
    calibration::calibrate,
    chips::chip,
    measure::{MeasuredModel, measure},
    report::TuneReport,
    room::Room,
    survey::{NamedHeaders, survey},
};

/// How much time to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Smaller random models, one round, one text for drafters.
    Quick,
    Full,
}

impl Effort {
    fn name(self) -> &'static str {
        match self {
            Effort::Quick => "quick",
            Effort::Full => "full",
        }
    }

    /// Measured rounds.
    fn repeats(self) -> usize {
        match self {
            Effort::Quick => 1,
            Effort::Full => 3,
        }
    }

    /// Tokens of a measured answer.
    fn generate(self) -> usize {
        match self {
            Effort::Quick => 16,
            Effort::Full => 64,
        }
    }
}

/// Why the machine could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Open(#[from] crate::loading::OpenError),
    #[error(transparent)]
    Request(#[from] engine::RequestError),
    #[error(transparent)]
    Prompt(#[from] crate::model::PromptError),
    #[error("the system does not say how much memory there is; set --memory-limit")]
    UnknownMemory,
}
