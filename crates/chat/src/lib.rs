//! Text to tokens and back. No model, no HTTP: a conversation becomes a prompt, token ids become deltas of text.
//!
//! In: [`conversation`] -> [`Template`] -> [`Tokenizer::encode`].
//! Out: [`Decoder`] = [`Detokenizer`] -> [`Reasoning`] -> [`StopStrings`].

mod clock;
pub mod conversation;
mod decode;
mod detokenize;
mod environment;
mod error;
mod filters;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod growth;
mod json;
mod memo;
mod pieces;
mod python;
mod reasoning;
mod sandbox;
mod stop;
mod template;
mod tokenizer;
pub mod volatile_lines;

pub use decode::{DecodeOptions, Decoder};
pub use detokenize::{Detokenizer, TextOffsets};
pub use error::{Error, Result};
pub use reasoning::{Delta, Markers, Reasoning, starts_in_reasoning};
pub use stop::StopStrings;
pub use template::{DateTime, RenderInput, Template};
pub use tokenizer::Tokenizer;
