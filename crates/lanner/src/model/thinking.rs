//! Whether a prompt's answers think, and the limit on their thinking.

use std::{borrow::Cow, sync::Arc};

use chat::{
    Markers,
    thinking::{self, TaskKind, ThinkingLimit, ThinkingOptions, ThinkingRule, harmony},
    tools::Dialect,
};
use serde_json::Value;

use super::{Conversation, Model, Prompt, PromptError};
use crate::thinking::{ThinkingChoice, ThinkingDecision, ThinkingParams, thinking_room};

/// Variables by which chat templates turn thinking on: most families; DeepSeek, Kimi and Granite;
/// Command A.
const SWITCHES: [&str; 3] = ["enable_thinking", "thinking", "reasoning"];

impl Model {
    /// Whether the model thinks in any way.
    pub(super) fn can_think(&self) -> bool {
        self.markers.is_some() || self.tool_dialect == Some(Dialect::Harmony)
    }

    /// Decides whether a conversation thinks, where its template variables do not say so.
    pub(super) fn decide_thinking<'a>(
        &self,
        conversation: &'a Conversation,
    ) -> (Cow<'a, Conversation>, Option<ThinkingDecision>) {
        let (kwargs, messages) = (&conversation.kwargs, &conversation.messages);
        let said = SWITCHES.iter().find_map(|name| kwargs.get(*name).and_then(Value::as_bool));
        let by_default = || match self.thinking.choice {
            _ if conversation.auto_thinking => Some(thinking::auto(messages)),
            ThinkingChoice::Auto => Some(thinking::auto(messages)),
            ThinkingChoice::On => Some((true, ThinkingRule::Default)),
            ThinkingChoice::Off => Some((false, ThinkingRule::Default)),
            ThinkingChoice::Template => None,
        };
        let said = said.map(|enabled| (enabled, ThinkingRule::Request));
        let by_keyword = || thinking::keyword(messages).map(|enabled| (enabled, ThinkingRule::Keyword));
        let decided = said.or_else(by_keyword).or_else(by_default).filter(|_| self.can_think());
        let Some((enabled, rule)) = decided else { return (Cow::Borrowed(conversation), None) };
        let mut conversation = conversation.clone();
        for name in SWITCHES {
            conversation.kwargs.entry(name).or_insert(enabled.into());
        }
        (Cow::Owned(conversation), Some(ThinkingDecision { enabled, rule }))
    }

    /// The limit on the thinking of answers to a prompt, `room` tokens long with the answer;
    /// `None`: they do not think. `kind` is the task, if the request's fields show it; `has_tools`,
    /// whether they may call tools.
    ///
    /// # Errors
    /// The tokenizer cannot encode the transition.
    pub(super) fn thinking_limit(
        &self,
        prompt: &Prompt,
        params: &ThinkingParams,
        kind: Option<TaskKind>,
        has_tools: bool,
        room: usize,
    ) -> Result<Option<Arc<ThinkingLimit>>, PromptError> {
        if prompt.reasoning_ended || prompt.thinking.is_none() {
            return Ok(None);
        }
        let harmony = || Markers { open: harmony::OPEN.into(), close: harmony::CLOSE.into() };
        let (markers, closing) = match &prompt.reasoning {
            Some(markers) => (markers.clone(), format!("\n{}", markers.close)),
            // A message in the channel of calls may go to the user too.
            None if has_tools => (harmony(), harmony::TO_CALL.to_owned()),
            None => (harmony(), harmony::TO_ANSWER.to_owned()),
        };
        let escape = params.escape.as_ref().unwrap_or(&self.thinking.escape);
        let options = ThinkingOptions {
            markers,
            inside: prompt.starts_in_reasoning,
            budget: params.budget.unwrap_or(self.thinking.budget),
            room: thinking_room(room),
            transition: escape.transition(kind, &prompt.user_text),
            closing,
            eos_ids: self.engine.info().eos_ids.clone(),
            free_answer: kind.is_none(),
        };
        Ok(Some(ThinkingLimit::new(self.tokenizer.clone(), options)?))
    }
}
