//! One log line per request, and its figures for the store: route, status, tokens and speed.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use store::{RequestRecord, Store};

use super::{
    key_limits::{KeyPermit, KeyUsage},
    openai::{error::ApiError, usage::Usage},
};

/// Routes that monitors and the web page poll are logged at `debug`, and not stored.
const POLLED: [&str; 5] = ["/", "/health", "/metrics", "/v1/stats", "/v1/stats/history"];
/// Below these, the web page reads its files and keeps its conversations.
const OF_PAGE: [&str; 2] = ["/page/", "/v1/history"];
/// The route of a request that matches none: its path may be any text.
const NO_ROUTE: &str = "(none)";

/// A request, logged when the last reference to it is dropped: after the answer's last byte, or
/// when the client has disconnected.
#[derive(Debug)]
pub(super) struct RequestLog {
    id: String,
    method: Method,
    path: String,
    /// The path with the names of its parts.
    route: OnceLock<String>,
    arrived: Instant,
    /// `arrived` in milliseconds since the Unix epoch.
    at: i64,
    key: OnceLock<RequestKey>,
    answer: Mutex<AnswerLog>,
    /// Where its figures go.
    store: Option<Store>,
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
    model: Option<String>,
    finish_reason: Option<&'static str>,
    first_token: Option<Duration>,
    completion: Option<CompletionLog>,
    /// Tokens of prompts, and of answers so far.
    prompt_tokens: usize,
    answer_tokens: usize,
    permit: Option<KeyPermit>,
}

#[derive(Debug)]
struct CompletionLog {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    reasoning_tokens: usize,
    drafted: usize,
    accepted: usize,
    cache_miss: Option<&'static str>,
    decode_ms: f64,
    tokens_per_second: Option<f64>,
}

impl RequestLog {
    pub(super) fn new(id: String, method: Method, path: String, store: Option<Store>) -> RequestLog {
        RequestLog {
            id,
            method,
            path,
            route: OnceLock::new(),
            arrived: Instant::now(),
            at: store::now(),
            key: OnceLock::new(),
            answer: Mutex::default(),
            store,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Sets the route, whose text is not the client's; later calls change nothing.
    pub(super) fn set_route(&self, route: &str) {
        let _ = self.route.set(route.to_owned());
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

    /// Adds tokens of a prompt, which are charged to the key at the end.
    pub(super) fn add_prompt_tokens(&self, count: usize) {
        self.update(|answer| answer.prompt_tokens += count);
    }

    /// Adds tokens of an answer, which are charged to the key at the end.
    pub(super) fn add_answer_tokens(&self, count: usize) {
        self.update(|answer| answer.answer_tokens += count);
    }

    pub(super) fn set_model(&self, name: &str) {
        self.update(|answer| answer.model = Some(name.to_owned()));
    }

    pub(super) fn set_finish_reason(&self, reason: &'static str) {
        self.update(|answer| answer.finish_reason = Some(reason));
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
        let (timings, speculation) = (usage.timings(), &usage.lanner.speculation);
        let completion = CompletionLog {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.prompt_tokens_details.cached_tokens,
            completion_tokens: usage.completion_tokens,
            reasoning_tokens: usage.completion_tokens_details.reasoning_tokens,
            drafted: speculation.drafted,
            accepted: speculation.accepted,
            cache_miss: usage.lanner.cache.miss.as_ref().map(|miss| miss.reason),
            decode_ms: timings.predicted_ms,
            tokens_per_second: timings.predicted_per_second,
        };
        self.update(|answer| answer.completion = Some(completion));
    }

    /// Its figures: no text of the request, nor of the answer.
    fn record(&self) -> RequestRecord {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let completion = answer.completion.as_ref();
        let count = |of: fn(&CompletionLog) -> usize| completion.map_or(0, of) as u64;
        let route = self.route.get().map_or(NO_ROUTE, String::as_str);
        RequestRecord {
            at: self.at,
            id: self.id.clone(),
            route: format!("{} {route}", known_method(&self.method)),
            status: answer.status.map_or(0, |status| status.as_u16()),
            outcome: answer.outcome.unwrap_or_default().to_owned(),
            model: answer.model.clone().unwrap_or_default(),
            key: self.key.get().and_then(|key| key.name.as_deref()).unwrap_or_default().to_owned(),
            finish_reason: answer.finish_reason.unwrap_or_default().to_owned(),
            cache_miss: completion.and_then(|answer| answer.cache_miss).unwrap_or_default().to_owned(),
            // A request that was cancelled has no usage.
            prompt_tokens: completion.map_or(answer.prompt_tokens, |answer| answer.prompt_tokens) as u64,
            cached_tokens: count(|answer| answer.cached_tokens),
            completion_tokens: completion.map_or(answer.answer_tokens, |answer| answer.completion_tokens)
                as u64,
            reasoning_tokens: count(|answer| answer.reasoning_tokens),
            drafted: count(|answer| answer.drafted),
            accepted: count(|answer| answer.accepted),
            time_to_first_token_ms: answer.first_token.map(milliseconds),
            decode_ms: completion.map(|answer| answer.decode_ms),
            tokens_per_second: completion.and_then(|answer| answer.tokens_per_second),
            duration_ms: milliseconds(self.arrived.elapsed()),
        }
    }

    /// The figures as an object, for logs in JSON.
    fn fields(&self) -> Value {
        let mut fields = json!(self.record());
        fields["path"] = self.path.clone().into();
        if let Some(fields) = fields.as_object_mut() {
            // Empty texts and unknown figures say nothing.
            fields.retain(|name, value| name != "at" && !value.is_null() && value != "");
        }
        fields
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

/// A client may send any word as a method.
fn known_method(method: &Method) -> &str {
    match *method {
        Method::GET | Method::POST | Method::PUT | Method::DELETE | Method::HEAD | Method::OPTIONS => {
            method.as_str()
        }
        _ => NO_ROUTE,
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let answer = self.answer.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(permit) = answer.permit.take() {
            permit.charge(answer.prompt_tokens + answer.answer_tokens);
        }
        if POLLED.contains(&&*self.path) || OF_PAGE.iter().any(|start| self.path.starts_with(start)) {
            tracing::debug!(request = %self.fields(), "{self}");
            return;
        }
        tracing::info!(request = %self.fields(), "{self}");
        if let Some(store) = &self.store {
            store.record(self.record());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeyLimits;

    #[test]
    fn request_log_names_route_status_and_tokens() {
        let log = RequestLog::new("req_1".into(), Method::POST, "/v1/messages".into(), None);
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
