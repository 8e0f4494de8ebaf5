//! The drafters, one per file.

pub(crate) mod dflash;
pub(crate) mod draft_context;
pub(crate) mod draft_model;
pub(crate) mod forced;
pub(crate) mod layer_profile;
pub(crate) mod layer_skip;
pub(crate) mod mtp;
pub(crate) mod ngram;
mod ngram_index;
mod rows;
pub(crate) mod scripted;
