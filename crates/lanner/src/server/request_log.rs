//! One log line per request: route, status, tokens and speed.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{Method, StatusCode};

use super::openai::usage::Usage;

/// Routes that monitors poll are logged at `debug`.
const POLLED: [&str; 3] = ["/", "/health", "/metrics"];

/// A request, logged when the last reference to it is dropped: after the answer's last byte, or
/// when the client has disconnected.
#[derive(Debug)]
pub(super) struct RequestLog {
    id: String,
    method: Method,
    path: String,
    arrived: Instant,
    answer: Mutex<AnswerLog>,
}

/// What is known of the answer so far.
#[derive(Debug, Default)]
struct AnswerLog {
    status: Option<StatusCode>,
    /// How a completion ended.
    outcome: Option<&'static str>,
    first_token: Option<Duration>,
    completion: Option<CompletionLog>,
}

#[derive(Debug)]
struct CompletionLog {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    tokens_per_second: Option<f64>,
}

impl RequestLog {
    pub(super) fn new(id: String, method: Method, path: String) -> RequestLog {
        RequestLog { id, method, path, arrived: Instant::now(), answer: Mutex::default() }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn set_status(&self, status: StatusCode) {
        self.update(|answer| answer.status = Some(status));
    }

    pub(super) fn set_outcome(&self, outcome: &'static str) {
        self.update(|answer| answer.outcome = Some(outcome));
    }

    /// Records the time to the first token; later calls change nothing.
    pub(super) fn set_first_token(&self) {
        let elapsed = self.arrived.elapsed();
        self.update(|answer| answer.first_token = answer.first_token.or(Some(elapsed)));
    }

    pub(super) fn set_usage(&self, usage: &Usage) {
        let completion = CompletionLog {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.prompt_tokens_details.cached_tokens,
            completion_tokens: usage.completion_tokens,
            tokens_per_second: usage.timings().predicted_per_second,
        };
        self.update(|answer| answer.completion = Some(completion));
    }

    fn update(&self, change: impl FnOnce(&mut AnswerLog)) {
        change(&mut self.answer.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Display for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "{} {}", self.method, self.path)?;
        match answer.status {
            Some(status) => write!(f, " {}", status.as_u16())?,
            // The client disconnected before the response.
            None => write!(f, " -")?,
        }
        if let Some(outcome) = answer.outcome {
            write!(f, " {outcome}")?;
        }
        if let Some(completion) = &answer.completion {
            let CompletionLog { prompt_tokens, cached_tokens, completion_tokens, .. } = completion;
            write!(f, ", {prompt_tokens} tokens in, {cached_tokens} cached, {completion_tokens} out")?;
        }
        if let Some(first_token) = answer.first_token {
            write!(f, ", TTFT {:.0} ms", first_token.as_secs_f64() * 1e3)?;
        }
        if let Some(speed) = answer.completion.as_ref().and_then(|answer| answer.tokens_per_second) {
            write!(f, ", {speed:.1} tok/s")?;
        }
        write!(f, ", {:.0} ms, {}", self.arrived.elapsed().as_secs_f64() * 1e3, self.id)
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        match POLLED.contains(&&*self.path) {
            true => tracing::debug!("{self}"),
            false => tracing::info!("{self}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_log_names_route_status_and_tokens() {
        let log = RequestLog::new("req_1".into(), Method::POST, "/v1/messages".into());
        assert!(log.to_string().starts_with("POST /v1/messages -, "), "{log}");
        log.set_status(StatusCode::OK);
        log.set_outcome("answered");
        let mut usage = Usage::default();
        (usage.prompt_tokens, usage.completion_tokens) = (70, 9);
        usage.prompt_tokens_details.cached_tokens = 64;
        log.set_usage(&usage);
        log.set_first_token();
        let line = log.to_string();
        assert!(
            line.starts_with("POST /v1/messages 200 answered, 70 tokens in, 64 cached, 9 out, TTFT "),
            "{line}"
        );
        assert!(line.ends_with(" ms, req_1"), "{line}");
    }
}
