//! Limits of one API key: requests at a time, requests and tokens per minute.
//!
//! Rates are token buckets that hold a minute's worth: a client may use it at once, and gets it
//! back evenly. Tokens are charged once they are known, so that one request may overdraw the
//! bucket; the next ones wait until it has recovered.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::StatusCode;

use super::openai::error::ApiError;
use crate::config::KeyLimits;

/// When to try again while the allowed number of requests runs: they end in seconds.
const PARALLEL_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Use of one key; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct KeyUsage(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: KeyLimits,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    running: u32,
    requests: Bucket,
    tokens: Bucket,
}

#[derive(Debug)]
struct Bucket {
    /// Per minute, and at most at once; `None`: no limit.
    limit: Option<u32>,
    left: f64,
    at: Instant,
}

/// A request within the limits; it counts as running until this is dropped.
#[derive(Debug)]
pub(crate) struct KeyPermit(KeyUsage);

impl KeyUsage {
    pub(crate) fn new(limits: KeyLimits, now: Instant) -> KeyUsage {
        let [requests, tokens] = [limits.rpm_limit, limits.tpm_limit].map(|limit| Bucket::new(limit, now));
        KeyUsage(Arc::new(Shared { limits, state: Mutex::new(State { running: 0, requests, tokens }) }))
    }

    /// # Errors
    /// 429: the key is at one of its limits.
    pub(crate) fn acquire(&self, now: Instant) -> Result<KeyPermit, ApiError> {
        let mut state = self.lock();
        if let Some(most) = self.0.limits.max_parallel_requests.filter(|most| state.running >= *most) {
            let message = format!("this API key may run {most} requests at a time; wait until one has ended");
            return Err(exceeded("requests", message, PARALLEL_RETRY_AFTER));
        }
        if let Err(wait) = state.tokens.check(now, f64::MIN_POSITIVE) {
            return Err(exceeded("tokens", rate(&state.tokens, "tokens", wait), wait));
        }
        if let Err(wait) = state.requests.check(now, 1.0) {
            return Err(exceeded("requests", rate(&state.requests, "requests", wait), wait));
        }
        state.requests.take(1.0);
        state.running += 1;
        Ok(KeyPermit(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyPermit {
    /// Charges tokens of prompts and answers.
    pub(crate) fn charge(&self, tokens: usize) {
        self.0.lock().tokens.take(tokens as f64);
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
    }
}

impl Bucket {
    fn new(limit: Option<u32>, now: Instant) -> Bucket {
        Bucket { limit, left: limit.map_or(0.0, f64::from), at: now }
    }

    /// Whether there is `least`; otherwise how long that takes.
    fn check(&mut self, now: Instant, least: f64) -> Result<(), Duration> {
        let Some(limit) = self.limit.map(f64::from) else { return Ok(()) };
        let per_second = limit / 60.0;
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + elapsed * per_second).min(limit), self.at.max(now));
        match self.left >= least {
            true => Ok(()),
            false => Err(Duration::from_secs_f64((least - self.left) / per_second)),
        }
    }

    fn take(&mut self, amount: f64) {
        if self.limit.is_some() {
            self.left -= amount;
        }
    }
}

fn rate(bucket: &Bucket, unit: &str, wait: Duration) -> String {
    let limit = bucket.limit.unwrap_or_default();
    let seconds = wait.as_secs_f64().ceil();
    format!("this API key may use {limit} {unit} a minute; send the request again in {seconds} s")
}

/// `kind` is OpenAI's type of the error.
fn exceeded(kind: &'static str, message: String, retry_after: Duration) -> ApiError {
    let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("rate_limit_exceeded");
    error.body.r#type = kind;
    ApiError { retry_after: Some(retry_after), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the next request may come, in seconds; 0 if now.
    fn wait(usage: &KeyUsage, now: Instant) -> f64 {
        match usage.acquire(now) {
            Ok(_) => 0.0,
            Err(error) => error.retry_after.unwrap().as_secs_f64(),
        }
    }

    fn after(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn requests_per_minute_come_back_evenly() {
        let start = Instant::now();
        let usage = KeyUsage::new(KeyLimits { rpm_limit: Some(6), ..KeyLimits::default() }, start);
        assert_eq!((0..6).map(|_| wait(&usage, start)).sum::<f64>(), 0.0);
        assert!((wait(&usage, start) - 10.0).abs() < 1e-6, "a request every ten seconds");
        assert!((wait(&usage, after(start, 4.0)) - 6.0).abs() < 1e-6);
        assert_eq!(wait(&usage, after(start, 10.1)), 0.0);
        assert!(wait(&usage, after(start, 10.1)) > 9.0);
        assert_eq!(
            (0..6).map(|_| wait(&usage, after(start, 1000.0))).sum::<f64>(),
            0.0,
            "no more than a minute's"
        );
        assert!(wait(&usage, after(start, 1000.0)) > 9.0);
    }

    #[test]
    fn tokens_per_minute_are_charged_afterwards() {
        let start = Instant::now();
        let usage = KeyUsage::new(KeyLimits { tpm_limit: Some(600), ..KeyLimits::default() }, start);
        usage.acquire(start).unwrap().charge(599);
        usage.acquire(start).unwrap().charge(401);
        assert!((wait(&usage, start) - 40.0).abs() < 1e-6, "the bucket is 400 tokens below zero");
        assert_eq!(wait(&usage, after(start, 40.1)), 0.0);
    }

    #[test]
    fn requests_at_a_time_are_counted_until_they_end() {
        let now = Instant::now();
        let limits = KeyLimits { max_parallel_requests: Some(2), ..KeyLimits::default() };
        let usage = KeyUsage::new(limits, now);
        let (first, _second) = (usage.acquire(now).unwrap(), usage.acquire(now).unwrap());
        let error = usage.acquire(now).unwrap_err();
        assert_eq!(
            (error.status.as_u16(), error.body.r#type, error.body.code),
            (429, "requests", Some("rate_limit_exceeded"))
        );
        drop(first);
        assert!(usage.acquire(now).is_ok());
        let unlimited = KeyUsage::new(KeyLimits::default(), now);
        assert!((0..100).all(|_| unlimited.acquire(now).is_ok_and(|permit| {
            permit.charge(1 << 40);
            true
        })));
    }
}
