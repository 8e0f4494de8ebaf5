//! Shared by several tests: recorded checkpoints, requests and their answers.

pub(crate) mod checkpoint;
pub(crate) mod constraints;
pub(crate) mod disk_model;
pub(crate) mod document;
pub(crate) mod drafting;
pub(crate) mod pictures;
pub(crate) mod recorded;
pub(crate) mod requests;
pub(crate) mod schedules;
pub(crate) mod skipped;

use lanner_engine::{Constraint, ConstraintState, TokenSet};
