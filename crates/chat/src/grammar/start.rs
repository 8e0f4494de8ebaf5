//! When a grammar begins to constrain an answer.

use crate::Markers;

/// When the grammar begins. The default: with the first token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Reasoning that may come first, and is free.
    pub reasoning: Option<ReasoningStart>,
    /// The grammar begins at the first of these in the content and also matches the trigger itself;
    /// text before it is free, and so is an answer without a trigger. If empty, the grammar begins
    /// with the content, and the answer cannot end before it.
    pub triggers: Vec<Trigger>,
}

/// Reasoning before the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningStart {
    /// The strings around it.
    pub markers: Markers,
    /// Whether the prompt already opened it: see [`crate::starts_in_reasoning`]. If not, the answer
    /// may open it.
    pub inside: bool,
}

/// The start of a grammar within free content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Text, however it is split into tokens; a token may also contain text after it.
    Text(String),
    /// A token, such as a special one.
    Token(u32),
}
