//! Reads a streamed chat completion: server-sent events, with the time of each.

use std::{
    io::{self, BufRead, Read},
    time::Instant,
};

use serde_json::Value;

use crate::report::Timing;

/// Longer lines are no events of a chat completion.
const LINE_LIMIT: u64 = 16 << 20;

/// Why one request has no complete answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the server answers {status}: {message}")]
    Refused { status: u16, message: String },
    #[error("no answer: {0}")]
    Transport(String),
    #[error("no end within {0} s")]
    Timeout(u64),
    #[error("the stream ended after {0} events, without a finish_reason")]
    Cut(usize),
    #[error("the stream reports an error: {0}")]
    InStream(String),
    #[error("the stream has an event that is no JSON: {0}")]
    NotJson(String),
    #[error("the server does not stream: its content type is {0}")]
    NotStreamed(String),
    #[error("the answer has no token (finish_reason {0})")]
    Empty(String),
}

/// A complete answer.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub content: String,
    pub reasoning: String,
    /// Names of called tools.
    pub tool_calls: Vec<String>,
    pub finish_reason: Option<String>,
    pub system_fingerprint: Option<String>,
    usage: Option<Value>,
    first: Option<f64>,
    last: f64,
    /// Events with text.
    chunks: usize,
    events: usize,
}

/// Reads a reply to its end; `started` is when the request was sent.
///
/// # Errors
/// The stream is cut, is not one of chat completions, reports an error, or holds no token.
pub(crate) fn read_reply(
    body: &mut dyn BufRead,
    started: Instant,
    timeout_s: u64,
) -> Result<(Reply, Timing), RequestError> {
    let mut reply = Reply::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        match body.take(LINE_LIMIT).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(read_error(&error, reply.events, timeout_s)),
        }
        let at = started.elapsed().as_secs_f64();
        let line = String::from_utf8_lossy(&line);
        // Comments, event names and ids carry no token.
        let Some(data) = line.trim_end().strip_prefix("data:") else { continue };
        if data.trim() == "[DONE]" {
            break;
        }
        reply.add(data.trim(), at)?;
    }
    let timing = reply.timing(started.elapsed().as_secs_f64())?;
    Ok((reply, timing))
}

fn read_error(error: &io::Error, events: usize, timeout_s: u64) -> RequestError {
    let text = error.to_string();
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => RequestError::Timeout(timeout_s),
        _ if text.contains("timeout") => RequestError::Timeout(timeout_s),
        _ => RequestError::Cut(events),
    }
}

impl Reply {
    /// Adds an event that came `at` seconds after the request was sent.
    fn add(&mut self, data: &str, at: f64) -> Result<(), RequestError> {
        let event: Value = serde_json::from_str(data)
            .map_err(|_| RequestError::NotJson(data.chars().take(200).collect()))?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return Err(RequestError::InStream(error_message(error)));
        }
        self.events += 1;
        if event["usage"].is_object() {
            self.usage = Some(event["usage"].clone());
        }
        if let Some(fingerprint) = event["system_fingerprint"].as_str() {
            self.system_fingerprint = Some(fingerprint.to_owned());
        }
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        if self.add_delta(&choice["delta"]) {
            self.first.get_or_insert(at);
            self.last = at;
            self.chunks += 1;
        }
        Ok(())
    }

    /// Whether the delta holds a token: text, reasoning, or a part of a tool call.
    fn add_delta(&mut self, delta: &Value) -> bool {
        let content = delta["content"].as_str().unwrap_or_default();
        // The field's older and newer name.
        let reasoning =
            delta["reasoning_content"].as_str().or(delta["reasoning"].as_str()).unwrap_or_default();
        self.content += content;
        self.reasoning += reasoning;
        let calls = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let names = calls.iter().filter_map(|call| call["function"]["name"].as_str());
        self.tool_calls.extend(names.map(str::to_owned));
        !content.is_empty() || !reasoning.is_empty() || !calls.is_empty()
    }

    fn timing(&self, total_s: f64) -> Result<Timing, RequestError> {
        let Some(reason) = &self.finish_reason else { return Err(RequestError::Cut(self.events)) };
        let Some(ttft_s) = self.first else { return Err(RequestError::Empty(reason.clone())) };
        let count = |pointer: &str| self.usage.as_ref()?.pointer(pointer)?.as_u64();
        let reported = count("/completion_tokens");
        let completion_tokens = reported.unwrap_or(self.chunks as u64);
        let decoding = self.last - ttft_s;
        let decode_tok_s =
            (completion_tokens > 1 && decoding > 0.0).then(|| (completion_tokens - 1) as f64 / decoding);
        Ok(Timing {
            ttft_s,
            total_s,
            decode_tok_s,
            prompt_tokens: count("/prompt_tokens"),
            cached_tokens: count("/prompt_tokens_details/cached_tokens"),
            completion_tokens,
            usage: reported.is_some(),
        })
    }
}

/// The message of an error object, in any of its usual forms.
pub(crate) fn error_message(error: &Value) -> String {
    let message = error["message"].as_str().or(error.as_str());
    message.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(field: &str, text: &str) -> String {
        serde_json::json!({ "choices": [{ "delta": { field: text } }] }).to_string()
    }

    fn finish(reason: &str) -> String {
        serde_json::json!({ "choices": [{ "delta": {}, "finish_reason": reason }] }).to_string()
    }

    fn reply(events: &[(&str, f64)]) -> Result<(Reply, Timing), RequestError> {
        let mut reply = Reply::default();
        for (data, at) in events {
            reply.add(data, *at)?;
        }
        let timing = reply.timing(9.0)?;
        Ok((reply, timing))
    }

    #[test]
    fn ttft_is_the_first_reasoning_or_content_token_and_not_the_role() {
        let (role, thought) = (delta("role", "assistant"), delta("reasoning_content", "hm"));
        let (answer, end) = (delta("content", "42"), finish("stop"));
        let (reply, timing) = reply(&[(&role, 0.1), (&thought, 0.5), (&answer, 1.5), (&end, 2.0)]).unwrap();
        assert_eq!((reply.content.as_str(), reply.reasoning.as_str()), ("42", "hm"));
        assert_eq!((timing.ttft_s, timing.total_s, timing.decode_tok_s), (0.5, 9.0, Some(1.0)));
        assert_eq!((timing.completion_tokens, timing.usage), (2, false));
    }

    #[test]
    fn decode_rate_is_by_usage_where_given() {
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":11,
            "prompt_tokens_details":{"cached_tokens":4}}}"#;
        let (first, last, end) = (delta("content", "a"), delta("content", "b"), finish("length"));
        let (_, timing) = reply(&[(&first, 1.0), (&last, 3.0), (&end, 3.0), (usage, 3.0)]).unwrap();
        assert_eq!((timing.decode_tok_s, timing.usage), (Some(5.0), true));
        assert_eq!((timing.prompt_tokens, timing.cached_tokens), (Some(7), Some(4)));
    }

    #[test]
    fn newer_reasoning_field_and_tool_calls_are_tokens() {
        let call =
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}]}"#;
        let (thought, end) = (delta("reasoning", "so"), finish("tool_calls"));
        let (reply, timing) = reply(&[(&thought, 1.0), (call, 2.0), (&end, 2.0)]).unwrap();
        assert_eq!((reply.tool_calls, reply.reasoning.as_str()), (vec!["f".to_owned()], "so"));
        assert_eq!(timing.completion_tokens, 2);
    }

    #[test]
    fn incomplete_replies_are_errors() {
        let check = |events: &[(&str, f64)], expected: &str| {
            assert_eq!(reply(events).unwrap_err().to_string(), expected);
        };
        let (text, end) = (delta("content", "a"), finish("stop"));
        check(&[(&text, 1.0)], "the stream ended after 1 events, without a finish_reason");
        check(&[(&end, 1.0)], "the answer has no token (finish_reason stop)");
        check(&[("{oops", 1.0)], "the stream has an event that is no JSON: {oops");
        check(
            &[(&text, 1.0), (r#"{"error":{"message":"out of memory"}}"#, 2.0)],
            "the stream reports an error: out of memory",
        );
    }

    #[test]
    fn comments_and_line_ends_of_events_are_skipped() {
        let text = format!(
            ": ping\r\n\r\nevent: x\r\ndata:{}\r\n\r\ndata: {}\n\ndata: [DONE]\n\ndata: x\n",
            delta("content", "ü"),
            finish("stop")
        );
        let (reply, _) = read_reply(&mut text.as_bytes(), Instant::now(), 9).unwrap();
        assert_eq!((reply.content.as_str(), reply.finish_reason.as_deref()), ("ü", Some("stop")));
    }
}
