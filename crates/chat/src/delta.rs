//! The parts of a reply, as clients receive them.

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Reasoning: `reasoning_content`.
    Reasoning(String),
    /// Answer: `content`.
    Content(String),
    /// The start of a tool call.
    ToolCall {
        /// Position among the calls of this reply.
        index: usize,
        /// Identifies the call; its result refers to it.
        id: String,
        /// The tool.
        name: String,
    },
    /// A fragment of a call's arguments; all fragments joined are one JSON object.
    ToolArguments {
        /// Position among the calls of this reply.
        index: usize,
        /// JSON text.
        arguments: String,
    },
}

impl Delta {
    /// The delta's text; empty for the start of a call.
    pub fn text(&self) -> &str {
        match self {
            Self::Reasoning(text) | Self::Content(text) | Self::ToolArguments { arguments: text, .. } => text,
            Self::ToolCall { .. } => "",
        }
    }
}
