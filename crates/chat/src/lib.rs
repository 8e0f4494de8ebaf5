//! Converts conversations to token ids, and token ids back to text. Knows nothing of models or
//! HTTP.
//!
//! Input: [`conversation`] -> [`Template`] -> [`Tokenizer::encode`].
//! Output: [`Decoder`] = [`Detokenizer`] -> [`Reasoning`] -> [`tools`] -> [`StopStrings`].
//!
//! ```
//! use lanner_chat::{RenderInput, Template};
//! use serde_json::{Map, json};
//!
//! let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
//! let template = Template::new(source, Map::new())?;
//! let messages = [json!({ "role": "user", "content": [{ "type": "text", "text": "Hi" }] })];
//! let messages = lanner_chat::conversation::prepare(&messages, &template)?;
//! let prompt = template.render(&RenderInput { messages: &messages, ..RenderInput::default() })?;
//! assert_eq!(prompt, "<user>Hi<assistant>");
//! # Ok::<(), lanner_chat::Error>(())
//! ```

#![warn(missing_docs)]

mod call_form;
mod content;
pub mod conversation;
mod decode;
mod delta;
mod detokenize;
mod environment;
mod error;
mod expansion;
mod fill_in_middle;
mod filters;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod grammar;
mod json;
mod late_system;
mod python;
mod reasoning;
mod repetition;
mod sandbox;
mod stop;
mod strftime;
mod template;
pub mod thinking;
mod token_bytes;
mod token_cache;
mod tokenizer;
mod tool_images;
pub mod tools;
pub mod volatile_lines;

pub use decode::{AnswerLimit, DecodeOptions, Decoder, ToolOptions};
pub use delta::Delta;
pub use detokenize::{Detokenizer, TextOffsets};
pub use error::{Error, Result};
pub use fill_in_middle::FillInMiddle;
pub use reasoning::{Markers, Reasoning, starts_in_reasoning};
pub use repetition::{MAX_PERIOD, Repetition};
pub use sandbox::memory::RenderMemory;
pub use stop::StopStrings;
pub use template::{DateTime, RenderInput, Template};
pub use tokenizer::Tokenizer;
pub use tool_images::into_user_turns;
