//! Integration tests of chat. `template_memory`, which measures its process, is a binary of its
//! own.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

mod decoding;
mod grammars;
mod hostile_templates;
mod hostile_tokenizers;
mod lark_regex;
mod prompts;
mod reference_templates;
mod reference_tokenizers;
mod repetition;
mod schema_keywords;
mod schemas;
#[path = "../../../engine/tests/it/support/skipped.rs"]
mod skipped;
mod streams;
mod templates;
mod thinking;
mod thinking_families;
mod tokens;
