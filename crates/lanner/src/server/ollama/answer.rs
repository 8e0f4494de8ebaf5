//! Response bodies of `/api/chat` and `/api/generate`: a line of a stream has the fields of the
//! whole answer.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::server::{format::AnswerInfo, openai::chat::TokenLogprob};

/// A part of an answer.
#[derive(Debug, Default)]
pub(super) struct AnswerPart {
    pub content: String,
    pub thinking: String,
    pub tool_calls: Vec<ToolCall>,
    pub logprobs: Option<Vec<TokenLogprob>>,
    pub end: Option<AnswerEnd>,
}

/// A line of a stream, or a whole answer.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OllamaAnswer")]
pub(crate) struct Line {
    model: String,
    created_at: String,
    /// Only in `/api/chat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    /// Only in `/api/generate`, like `thinking`.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogprob>>,
    done: bool,
    #[serde(flatten)]
    end: Option<AnswerEnd>,
}

#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OllamaMessage")]
struct Message {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OllamaToolCall")]
pub(super) struct ToolCall {
    pub id: String,
    pub function: ToolFunction,
}

#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OllamaFunction")]
pub(super) struct ToolFunction {
    pub index: usize,
    pub name: String,
    pub arguments: Map<String, Value>,
}

/// How an answer ended; durations are in nanoseconds.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct AnswerEnd {
    pub done_reason: &'static str,
    pub total_duration: u64,
    /// Waiting in the queue.
    pub load_duration: u64,
    pub prompt_eval_count: usize,
    pub prompt_eval_duration: u64,
    pub eval_count: usize,
    pub eval_duration: u64,
}

/// Seconds since the Unix epoch as RFC 3339 writes them.
pub(super) fn rfc3339(seconds: u64) -> String {
    Timestamp::from_second(seconds.cast_signed()).unwrap_or_default().to_string()
}

impl Line {
    /// A part of an answer; `is_chat`: it is a message.
    pub(super) fn new(answer: &AnswerInfo, is_chat: bool, part: AnswerPart) -> Line {
        let AnswerPart { content, thinking, tool_calls, logprobs, end } = part;
        let thinking = Some(thinking).filter(|text| !text.is_empty());
        let line = Line {
            model: answer.model.clone(),
            created_at: rfc3339(answer.created),
            message: None,
            response: None,
            thinking: None,
            logprobs,
            done: end.is_some(),
            end,
        };
        match is_chat {
            true => {
                Line { message: Some(Message { role: "assistant", content, thinking, tool_calls }), ..line }
            }
            false => Line { response: Some(content), thinking, ..line },
        }
    }

    pub(super) fn append(&mut self, part: AnswerPart) {
        let AnswerPart { content, thinking, tool_calls, logprobs, end } = part;
        let reasoning = match (&mut self.message, &mut self.response) {
            (Some(message), _) => {
                message.content.push_str(&content);
                message.tool_calls.extend(tool_calls);
                &mut message.thinking
            }
            (None, response) => {
                response.get_or_insert_default().push_str(&content);
                &mut self.thinking
            }
        };
        if !thinking.is_empty() {
            reasoning.get_or_insert_default().push_str(&thinking);
        }
        if let Some(logprobs) = logprobs {
            self.logprobs.get_or_insert_default().extend(logprobs);
        }
        self.done |= end.is_some();
        self.end = end.or(self.end.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_is_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_709_210_096), "2024-02-29T12:34:56Z");
    }
}
