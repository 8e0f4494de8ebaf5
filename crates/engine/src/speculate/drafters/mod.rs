//! The drafters, one per file.

pub mod dflash;
pub mod draft_context;
pub mod draft_model;
pub mod forced;
pub mod layer_profile;
pub mod layer_skip;
pub mod mtp;
pub mod ngram;
mod ngram_index;
mod rows;
pub mod scripted;
