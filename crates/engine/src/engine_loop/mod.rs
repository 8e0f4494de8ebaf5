//! The engine's thread: admits requests, schedules and runs steps, delivers events. Imported by
//! nothing below it.

pub(crate) mod admission;
mod deferred;
mod delivery;
mod drafting;
pub(crate) mod fault;
mod finish;
mod forward;
pub(crate) mod handle;
pub(crate) mod heartbeat;
mod images;
mod memory_admission;
mod meter;
mod phase;
mod pooled;
mod progress;
mod queue;
mod recovery;
mod resume;
mod row;
pub(crate) mod run;
mod schedule;
pub mod scripted;
mod seeing;
pub(crate) mod sequence;
mod sequence_draft;
pub(crate) mod start;
mod step;
mod step_clock;
mod step_shape;
mod stepping;
mod submission;
