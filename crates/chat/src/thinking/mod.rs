//! Thinking that ends: budgets, loops and the transition to the answer, followed token by token;
//! and the rules that decide whether a request thinks. Knows nothing of sampling.

mod control;
mod language;
mod limit;
mod task;

pub use control::{ThinkingRule, auto, keyword, last_user_text};
pub use limit::{Cut, Next, ThinkingLimit, ThinkingOptions, ThinkingTracker};
pub use task::{Task, TaskKind, sentences};

/// The channels of gpt-oss, as markers of its thinking.
pub mod harmony {
    /// The end of a prompt, before the channel of the answer.
    pub const BEGIN: &str = "<|start|>assistant";
    /// Opens the thinking.
    pub const OPEN: &str = "<|channel|>analysis<|message|>";
    /// Closes it.
    pub const CLOSE: &str = "<|end|>";
    /// Closes it and begins the answer.
    pub const TO_ANSWER: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";
    /// Closes it and begins a call of a tool, or a text before one.
    pub const TO_CALL: &str = "<|end|><|start|>assistant<|channel|>commentary";
}
