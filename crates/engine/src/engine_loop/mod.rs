//! The engine's thread: admits requests, schedules and runs steps, delivers events. Imported by
//! nothing below it.

pub mod admission;
mod deferred;
mod delivery;
mod drafting;
pub mod fault;
mod finish;
mod forward;
pub mod handle;
pub mod heartbeat;
mod memory_admission;
mod meter;
mod phase;
mod pooled;
mod progress;
mod queue;
mod recovery;
mod resume;
mod row;
pub mod run;
mod schedule;
pub mod scripted;
pub mod sequence;
mod sequence_draft;
pub mod start;
mod step;
mod step_clock;
mod step_shape;
mod stepping;
mod submission;
