//! Shared by several tests: recorded checkpoints, requests and their answers.

pub mod checkpoint;
pub mod constraints;
pub mod disk_model;
pub mod document;
pub mod drafting;
pub mod recorded;
pub mod requests;
pub mod skipped;

use lanner_engine::{Constraint, ConstraintState, TokenSet};
