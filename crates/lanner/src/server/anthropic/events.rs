//! Events of a streamed answer, and the message that they add up to.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::server::openai::usage::{LannerUsage, Usage};

/// An event of the stream; its name is its type.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEvent")]
pub(crate) enum StreamEvent {
    MessageStart {
        message: Box<Message>,
    },
    ContentBlockStart {
        index: usize,
        content_block: ContentBlock,
    },
    ContentBlockDelta {
        index: usize,
        delta: BlockDelta,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: MessageEnd,
        usage: Box<MessageUsage>,
        #[serde(skip_serializing_if = "Option::is_none")]
        context_management: Option<ContextManagement>,
    },
    MessageStop,
    Ping,
}

#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "AnthropicMessage")]
pub(crate) struct Message {
    pub id: String,
    pub r#type: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<ContentBlock>,
    #[serde(flatten)]
    pub end: MessageEnd,
    pub usage: Box<MessageUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_management: Option<ContextManagement>,
}

#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    Thinking {
        thinking: String,
        signature: String,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
        /// The JSON of `input` so far.
        #[serde(skip)]
        json: String,
    },
}

#[derive(Debug, JsonSchema, Serialize)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub(crate) struct MessageEnd {
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
}

/// Tokens of the prompt count once: read from the cache, stored in it, or neither.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct MessageUsage {
    pub input_tokens: usize,
    pub cache_creation_input_tokens: usize,
    pub cache_read_input_tokens: usize,
    pub output_tokens: usize,
    /// Fields that Anthropic's API does not have; known at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanner: Option<LannerUsage>,
}

/// No edit is ever applied.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct ContextManagement {
    pub applied_edits: [(); 0],
}

impl MessageUsage {
    /// Usage for a prompt: `cached` tokens were reused, and the first `marked` are to be cached.
    pub(super) fn of_prompt(prompt: usize, cached: usize, marked: usize) -> MessageUsage {
        let cache_creation_input_tokens = marked.min(prompt).saturating_sub(cached);
        MessageUsage {
            input_tokens: prompt.saturating_sub(cached + cache_creation_input_tokens),
            cache_creation_input_tokens,
            cache_read_input_tokens: cached,
            output_tokens: 0,
            lanner: None,
        }
    }

    pub(super) fn of_answer(usage: &Usage, marked: usize) -> MessageUsage {
        let cached = usage.prompt_tokens_details.cached_tokens;
        let is_off = usage.lanner.cache.miss.as_ref().is_some_and(|miss| miss.reason == "disabled");
        let marked = if is_off { 0 } else { marked };
        MessageUsage {
            output_tokens: usage.completion_tokens,
            lanner: Some(usage.lanner.clone()),
            ..MessageUsage::of_prompt(usage.prompt_tokens, cached, marked)
        }
    }
}

impl StreamEvent {
    pub(super) fn name(&self) -> &'static str {
        match self {
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::ContentBlockStart { .. } => "content_block_start",
            StreamEvent::ContentBlockDelta { .. } => "content_block_delta",
            StreamEvent::ContentBlockStop { .. } => "content_block_stop",
            StreamEvent::MessageDelta { .. } => "message_delta",
            StreamEvent::MessageStop => "message_stop",
            StreamEvent::Ping => "ping",
        }
    }
}

impl Message {
    /// Applies an event after the message's start.
    pub(super) fn apply(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::ContentBlockStart { content_block, .. } => self.content.push(content_block),
            StreamEvent::ContentBlockDelta { delta, .. } => {
                self.content.last_mut().into_iter().for_each(|block| block.append(&delta));
            }
            StreamEvent::ContentBlockStop { .. } => self.close_block(),
            StreamEvent::MessageDelta { delta, usage, context_management } => {
                (self.end, self.usage, self.context_management) = (delta, usage, context_management);
            }
            StreamEvent::MessageStart { .. } | StreamEvent::MessageStop | StreamEvent::Ping => {}
        }
    }

    /// Drops a call that the token limit cut: a client might run it.
    fn close_block(&mut self) {
        let Some(ContentBlock::ToolUse { input, json, .. }) = self.content.last_mut() else { return };
        let json = if json.is_empty() { "{}" } else { json };
        match serde_json::from_str(json) {
            Ok(object) => *input = object,
            Err(_) => drop(self.content.pop()),
        }
    }
}

impl ContentBlock {
    fn append(&mut self, delta: &BlockDelta) {
        match (self, delta) {
            (ContentBlock::Thinking { thinking, .. }, BlockDelta::Thinking { thinking: more }) => {
                thinking.push_str(more);
            }
            (ContentBlock::Thinking { signature, .. }, BlockDelta::Signature { signature: more }) => {
                signature.push_str(more);
            }
            (ContentBlock::Text { text }, BlockDelta::Text { text: more }) => text.push_str(more),
            (ContentBlock::ToolUse { json, .. }, BlockDelta::InputJson { partial_json }) => {
                json.push_str(partial_json);
            }
            _ => {}
        }
    }
}
