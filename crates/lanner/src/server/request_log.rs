//! One log line per request: route, status, tokens and speed.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{Method, StatusCode};

use super::{
    key_limits::{KeyPermit, KeyUsage},
    openai::{error::ApiError, usage::Usage},
};

/// Routes that monitors and the web page poll are logged at `debug`.
const POLLED: [&str; 4] = ["/", "/health", "/metrics", "/v1/stats"];

/// A request, logged when the last reference to it is dropped: after the answer's last byte, or
/// when the client has disconnected.
#[derive(Debug)]
pub(super) struct RequestLog {
    id: String,
    method: Method,
    path: String,
    arrived: Instant,
    key: OnceLock<RequestKey>,
    answer: Mutex<AnswerLog>,
}

/// The API key of a request.
#[derive(Debug)]
struct RequestKey {
    /// `None`: there is only one.
    name: Option<Arc<str>>,
    usage: KeyUsage,
}

/// What is known of the answer so far.
#[derive(Debug, Default)]
struct AnswerLog {
    status: Option<StatusCode>,
    /// How a completion ended.
    outcome: Option<&'static str>,
    first_token: Option<Duration>,
    completion: Option<CompletionLog>,
    /// Tokens of prompts and answers so far.
    num_tokens: usize,
    permit: Option<KeyPermit>,
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
        RequestLog {
            id,
            method,
            path,
            arrived: Instant::now(),
            key: OnceLock::new(),
            answer: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Sets the API key; later calls change nothing.
    pub(super) fn set_key(&self, name: Option<Arc<str>>, usage: KeyUsage) {
        let _ = self.key.set(RequestKey { name, usage });
    }

    /// Counts the request, until its end, towards the limits of its key.
    ///
    /// # Errors
    /// 429: the key is at a limit.
    pub(super) fn enter(&self) -> Result<(), ApiError> {
        let Some(key) = self.key.get() else { return Ok(()) };
        let permit = key.usage.acquire(Instant::now())?;
        self.update(|answer| answer.permit = Some(permit));
        Ok(())
    }

    /// Adds tokens of a prompt or an answer, which are charged to the key at the end.
    pub(super) fn add_tokens(&self, count: usize) {
        self.update(|answer| answer.num_tokens += count);
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
        if let Some(name) = self.key.get().and_then(|key| key.name.as_deref()) {
            write!(f, ", key {name}")?;
        }
        write!(f, ", {:.0} ms, {}", self.arrived.elapsed().as_secs_f64() * 1e3, self.id)
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let answer = self.answer.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(permit) = answer.permit.take() {
            permit.charge(answer.num_tokens);
        }
        match POLLED.contains(&&*self.path) || self.path.starts_with("/page/") {
            true => tracing::debug!("{self}"),
            false => tracing::info!("{self}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeyLimits;

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
        log.set_key(Some("ann".into()), KeyUsage::new(KeyLimits::default(), Instant::now()));
        assert!(log.to_string().contains(", key ann, "), "{log}");
    }
}
