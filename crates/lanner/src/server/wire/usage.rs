//! What an answer cost, on the wire.

use serde::Serialize;

use crate::generate::Finish;

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Every generated token: reasoning and the end-of-sequence token included.
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
    pub completion_tokens_details: CompletionTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PromptTokensDetails {
    pub cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CompletionTokensDetails {
    pub reasoning_tokens: usize,
}

impl Usage {
    /// Adds a finished choice; a prompt counts once, however many choices it has.
    pub fn add(&mut self, finish: &Finish, first_of_prompt: bool) {
        if first_of_prompt {
            self.prompt_tokens += finish.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += finish.cached_tokens;
        }
        self.completion_tokens += finish.completion_tokens;
        self.completion_tokens_details.reasoning_tokens += finish.reasoning_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}
