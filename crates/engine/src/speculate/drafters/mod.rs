//! The drafters, one in each file.

pub mod dflash;
pub mod draft_model;
pub mod forced;
pub mod layer_profile;
pub mod layer_skip;
pub mod mtp;
pub mod ngram;
pub mod ngram_table;
pub mod scripted;
