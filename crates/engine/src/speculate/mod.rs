//! Drafts of tokens to come: who proposes them. Whether they are right is decided elsewhere.

#[cfg_attr(not(test), expect(dead_code, reason = "first used by the loop that verifies"))]
pub mod mtp;
pub mod table;
