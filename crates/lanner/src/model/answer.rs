//! An answer's request to the engine and its decoder, under the limits on its thinking. The server,
//! `chat` and `run` all make them here.

use std::sync::Arc;

use chat::{DecodeOptions, Decoder, thinking::TaskKind, tools::ToolSet};
use engine::{Constraint, Request};

use super::{Model, Prompt, PromptError};
use crate::{
    sampling::Overrides,
    thinking::{self, AnswerLimits, ThinkingParams},
};

/// What an answer is made with, besides its prompt.
pub struct AnswerParams<'a> {
    /// Its `max_tokens` counts the answer without its thinking, unless they share it.
    pub overrides: &'a Overrides,
    pub thinking: &'a ThinkingParams,
    /// The prompt's, decoded.
    pub images: &'a [engine::Image],
    /// Continue after the tokens that end an answer; then thinking has no limit.
    pub ignore_eos: bool,
    /// Stop strings.
    pub stop: Vec<String>,
    /// The task, if the request's fields show it.
    pub kind: Option<TaskKind>,
    /// On the content.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// The tools that the model may call.
    pub tools: Option<&'a Arc<ToolSet>>,
}

impl Model {
    /// # Errors
    /// A stop string is empty, the model has no syntax for tool calls, or the tokenizer cannot
    /// encode the sentence that closes the thinking.
    pub fn answer(&self, prompt: &Prompt, params: AnswerParams) -> Result<(Request, Decoder), PromptError> {
        let mut request = self.request(prompt.ids.clone(), params.overrides);
        request.images = params.images.to_vec();
        request.ignore_eos = params.ignore_eos;
        request.prompt_progress = true;
        request.cache_breakpoints = prompt.cache_breakpoints.clone();
        let limits = self.answer_limits(prompt, &params, request.max_tokens)?;
        if let (Some(thinking), Some(answer)) = (&limits.thinking, limits.max_answer_tokens) {
            let room = self.room(prompt).max(answer);
            request.max_tokens = answer.saturating_add(thinking.max_tokens()).min(room);
        }
        let info = self.engine.info();
        let with_grammar = params.constraint.is_some();
        request.constraint = match limits.thinking.clone() {
            Some(limit) => {
                Some(thinking::constraint(limit, params.constraint, info.vocab_size, &info.eos_ids))
            }
            None => params.constraint,
        };
        let options = DecodeOptions {
            stop: params.stop,
            reasoning: prompt.reasoning.clone(),
            starts_in_reasoning: prompt.starts_in_reasoning,
            // With a grammar, the arguments of tool calls are passed on as they arrive.
            tools: self.tool_options(params.tools, with_grammar)?,
            thinking: limits.thinking,
            max_answer_tokens: limits.max_answer_tokens,
            stop_repetition: limits.stop_repetition,
            ..DecodeOptions::default()
        };
        Ok((request, Decoder::new(self.tokenizer.clone(), options)?))
    }

    /// The limits of an answer whose engine request has `max_tokens`.
    fn answer_limits(
        &self,
        prompt: &Prompt,
        params: &AnswerParams,
        max_tokens: usize,
    ) -> Result<AnswerLimits, PromptError> {
        let ThinkingParams { shares_max_tokens, stop_repetition, .. } = *params.thinking;
        // What goes on after the end of an answer has no answer to wait for.
        if params.ignore_eos {
            return Ok(AnswerLimits { stop_repetition, ..AnswerLimits::default() });
        }
        let max_answer_tokens = params.overrides.max_tokens.filter(|_| !shares_max_tokens);
        let room = match max_answer_tokens {
            Some(answer) => self.room(prompt).max(answer),
            None => max_tokens,
        };
        let has_tools = params.tools.is_some();
        let thinking = self.thinking_limit(prompt, params.thinking, params.kind, has_tools, room)?;
        let max_answer_tokens = max_answer_tokens.filter(|_| thinking.is_some());
        Ok(AnswerLimits { thinking, max_answer_tokens, stop_repetition })
    }

    /// Tokens that the context, and memory, leave after a prompt; at least one.
    fn room(&self, prompt: &Prompt) -> usize {
        let info = self.engine.info();
        info.memory.most_tokens(info.context_length).saturating_sub(prompt.ids.len()).max(1)
    }
}
