//! The OpenAI wires: what a request may say, what it means once valid, and how answers look. No HTTP handling.

pub mod chat;
pub mod completions;
pub mod count;
pub mod error;
pub mod usage;

use std::{collections::BTreeMap, fmt, time::Duration};

use engine::{ModelInfo, Priority, SamplingRange, Speculate};
use ring::digest::{SHA256, digest};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::Value;

use self::error::ApiError;
use super::idempotency::Fingerprint;
use crate::{generate::Reason, sampling::Overrides};

const MAX_CHOICES: usize = 16;
const MAX_STOP_STRINGS: usize = 16;
/// Matching costs time for every token generated.
const MAX_STOP_BYTES: usize = 1024;
const MAX_TOP_LOGPROBS: usize = 20;
const MAX_KEY_BYTES: usize = 128;
/// In milliseconds.
const MAX_TTL: u64 = 60_000;
/// In seconds: some thirty years.
const MAX_TIMEOUT: f64 = 1e9;
/// What a request with an idempotency key may change when it is sent again: not what is generated, but how it is run and sent.
const INCIDENTAL: [&str; 7] =
    ["idempotency_key", "cache_ttl_ms", "stream", "stream_options", "priority", "timeout", "speculation"];

/// A request that holds what its type promises.
#[derive(Debug, PartialEq)]
pub struct ValidRequest<P> {
    /// The model asked for, if any was named.
    pub model: Option<String>,
    pub prompts: P,
    pub params: GenerateParams,
    pub idempotency: Option<Idempotency>,
}

/// A request that may be sent again and is then answered with the same answer.
#[derive(Debug, PartialEq)]
pub struct Idempotency {
    pub key: String,
    /// How long the answer is kept.
    pub ttl: Duration,
}

/// What both wires say about generating: valid, so nothing here is checked again.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateParams {
    pub overrides: Overrides,
    /// Not empty, and neither is any of them.
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// Choices per prompt.
    pub n: usize,
    /// Report log-probabilities, with this many alternatives.
    pub logprobs: Option<usize>,
    /// Report the prompt's own log-probabilities, before any token.
    pub prompt_logprobs: bool,
    /// Only the prompt is wanted: the one token that the engine must be asked for is dropped.
    pub prompt_only: bool,
    pub priority: Priority,
    /// From the request's arrival to its end.
    pub timeout: Option<Duration>,
    /// Who drafts; `None`: as the server was told.
    pub speculation: Option<Speculate>,
    pub reply: Reply,
}

impl GenerateParams {
    /// Whether the same request has the same answer.
    pub fn is_repeatable(&self, info: &ModelInfo) -> bool {
        let sampling = self.overrides.sampling(&info.default_sampling);
        self.overrides.seed.is_some() || sampling.temperature == 0.0
    }
}

/// One JSON object, or server-sent events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Whole,
    Stream { include_usage: bool },
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`auto`, `off` or an object with `drafter`")]
enum SpeculationField {
    Word(String),
    Drafter { drafter: String, depth: Option<usize>, lossy: Option<bool> },
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or an array of strings")]
enum StopField {
    One(String),
    Many(Vec<String>),
}

/// `logit_bias` as sent, in its order: a name may stand there twice.
#[derive(Debug)]
struct LogitBiasField(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for LogitBiasField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LogitBiasField, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = LogitBiasField;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of token ids and numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBiasField, A::Error> {
                let mut pairs = vec![];
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(LogitBiasField(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// Reads a body as JSON into `T`; fields that `T` does not have are ignored, and logged.
///
/// # Errors
/// 400 that names the field with the wrong type, or says where the JSON breaks.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let request = serde_ignored::deserialize(tracked, |field| tracing::debug!(%field, "ignored"));
    let request = request.and_then(|request| json.end().map(|()| request));
    request.map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            match track.path().to_string() {
                // The body as a whole, as when a field is missing.
                field if field == "." => ApiError::invalid_body(error.to_string()),
                field => ApiError::invalid(&field, format!("{field}: {error}")),
            }
        }
        _ => ApiError::invalid_body(format!("the body is not valid JSON: {error}")),
    })
}

/// Recognises a valid request of one route by all that its answer depends on. The order of fields does
/// not matter, and a null field is one left out. Drafts change no answer, unless they are `lossy`.
pub fn fingerprint(route: &str, body: &[u8], lossy: bool) -> Fingerprint {
    let body = match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(mut fields)) => {
            fields.retain(|name, value| !INCIDENTAL.contains(&name.as_str()) && !value.is_null());
            let mut fields = Value::Object(fields);
            fields.sort_all_objects();
            format!("json {fields}")
        }
        // Fields that are ignored may hold what no `Value` can: numbers too large, arrays too deep.
        _ => format!("bytes {}", String::from_utf8_lossy(body)),
    };
    let hash = digest(&SHA256, format!("{route} {lossy} {body}").as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(hash.as_ref());
    Fingerprint(bytes)
}

fn idempotency(key: Option<String>, ttl: Option<u64>) -> Result<Option<Idempotency>, ApiError> {
    let wrong = |param: &str, message: String| Err(ApiError::invalid(param, message));
    match (key, ttl.unwrap_or(MAX_TTL)) {
        (None, _) if ttl.is_none() => Ok(None),
        (None, _) => wrong("cache_ttl_ms", "cache_ttl_ms only goes with idempotency_key".into()),
        (Some(key), _) if key.is_empty() || key.len() > MAX_KEY_BYTES => {
            wrong("idempotency_key", format!("idempotency_key must have 1 to {MAX_KEY_BYTES} bytes"))
        }
        (Some(_), ttl) if ttl > MAX_TTL => {
            wrong("cache_ttl_ms", format!("cache_ttl_ms must be between 0 and {MAX_TTL}"))
        }
        (Some(key), ttl) => Ok(Some(Idempotency { key, ttl: Duration::from_millis(ttl) })),
    }
}

fn priority(name: Option<&str>) -> Result<Priority, ApiError> {
    match name {
        Some("interactive") => Ok(Priority::Interactive),
        Some("normal") | None => Ok(Priority::Normal),
        Some("background") => Ok(Priority::Background),
        Some(name) => {
            let message = format!("priority is `{name}`; it must be interactive, normal or background");
            Err(ApiError::invalid("priority", message))
        }
    }
}

fn speculation(asked: Option<SpeculationField>) -> Result<Option<Speculate>, ApiError> {
    match asked {
        None => Ok(None),
        Some(SpeculationField::Drafter { drafter, depth, lossy: Some(true) }) => match (&*drafter, depth) {
            ("self", None) => Ok(Some(Speculate::Lossy)),
            ("self", Some(_)) => {
                let message = "the lossy form of self verifies nothing, so it takes no depth";
                Err(ApiError::invalid("speculation", message))
            }
            _ => {
                let message = format!("only the drafter self has a lossy form, not `{drafter}`");
                Err(ApiError::invalid("speculation", message))
            }
        },
        Some(SpeculationField::Drafter { drafter, depth, .. }) => {
            Ok(Some(Speculate::Fixed { drafter, depth }))
        }
        Some(SpeculationField::Word(word)) => {
            word.parse().map(Some).map_err(|message| ApiError::invalid("speculation", message))
        }
    }
}

fn timeout(seconds: Option<f64>) -> Result<Option<Duration>, ApiError> {
    match seconds {
        Some(seconds) if !(seconds > 0.0 && seconds <= MAX_TIMEOUT) => {
            let message =
                format!("timeout is {seconds:?}; it must be above 0 and at most {MAX_TIMEOUT} seconds");
            Err(ApiError::invalid("timeout", message))
        }
        seconds => Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())),
    }
}

fn reply(stream: Option<bool>, options: Option<StreamOptions>) -> Result<Reply, ApiError> {
    match (stream.unwrap_or(false), options) {
        (true, options) => {
            let include_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
            Ok(Reply::Stream { include_usage })
        }
        (false, Some(_)) => {
            Err(ApiError::invalid("stream_options", "stream_options only goes with `stream: true`"))
        }
        (false, None) => Ok(Reply::Whole),
    }
}

fn stop_strings(stop: Option<StopField>) -> Result<Vec<String>, ApiError> {
    let strings = match stop {
        None => Vec::new(),
        Some(StopField::One(string)) => vec![string],
        Some(StopField::Many(strings)) => strings,
    };
    if strings.len() > MAX_STOP_STRINGS {
        return Err(ApiError::invalid("stop", format!("stop takes at most {MAX_STOP_STRINGS} strings")));
    }
    if strings.iter().any(String::is_empty) {
        return Err(ApiError::invalid("stop", "a stop string must not be empty"));
    }
    if strings.iter().any(|string| string.len() > MAX_STOP_BYTES) {
        return Err(ApiError::invalid("stop", format!("a stop string has at most {MAX_STOP_BYTES} bytes")));
    }
    Ok(strings)
}

fn choices(n: Option<usize>) -> Result<usize, ApiError> {
    match n.unwrap_or(1) {
        n @ 1..=MAX_CHOICES => Ok(n),
        n => Err(ApiError::invalid("n", format!("n is {n}; it must be between 1 and {MAX_CHOICES}"))),
    }
}

fn alternatives(param: &'static str, count: usize) -> Result<usize, ApiError> {
    if count <= MAX_TOP_LOGPROBS {
        return Ok(count);
    }
    let message = format!("{param} is {count}; it must be between 0 and {MAX_TOP_LOGPROBS}");
    Err(ApiError::invalid(param, message))
}

/// A sampling parameter, in its range.
fn number(range: SamplingRange, value: Option<f64>) -> Result<Option<f32>, ApiError> {
    let checked = value.map(|value| range.check(value)).transpose();
    checked.map_err(|error| ApiError::from_engine(&error, range.name))
}

fn logit_bias(biases: Option<LogitBiasField>) -> Result<BTreeMap<u32, f32>, ApiError> {
    let wrong = |message: String| Err(ApiError::invalid("logit_bias", message));
    let mut checked = BTreeMap::new();
    for (name, value) in biases.map_or_else(Vec::new, |LogitBiasField(pairs)| pairs) {
        let shown: String = name.chars().take(32).collect();
        let Ok(id) = name.parse::<u32>() else {
            return wrong(format!("logit_bias: `{shown}` is not a token id"));
        };
        let Ok(bias) = SamplingRange::LOGIT_BIAS.check(value) else {
            let must = SamplingRange::LOGIT_BIAS.must;
            return wrong(format!("logit_bias of token {id} is {value:?}; it must be {must}"));
        };
        if checked.insert(id, bias).is_some() {
            return wrong(format!("logit_bias names token {id} twice"));
        }
    }
    Ok(checked)
}

/// Some clients write -1 for "all".
fn top_k(top_k: Option<i64>) -> Result<Option<usize>, ApiError> {
    match top_k {
        Some(k @ ..-1) => Err(ApiError::invalid(
            "top_k",
            format!("top_k is {k}; it must be 0 or more, or -1 for all tokens"),
        )),
        k => Ok(k.map(|k| usize::try_from(k).unwrap_or(0))),
    }
}

/// Refuses fields that would change the answer and that we cannot honour.
fn refuse(fields: &[(&str, bool)]) -> Result<(), ApiError> {
    match fields.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(ApiError::unsupported(name)),
        None => Ok(()),
    }
}

/// How the end of an answer is called.
pub fn finish_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "stop",
        Reason::Length => "length",
        // As vLLM calls it; OpenAI has no word for an answer that its server gave up.
        Reason::Cancelled => "abort",
    }
}

/// JSON has no infinity; OpenAI writes this for tokens that cannot be. Widened, so that a number reads the same
/// wherever it stands.
fn finite(logprob: f32) -> f64 {
    f64::from(logprob.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(body: &str) -> Fingerprint {
        fingerprint("r", body.as_bytes(), false)
    }

    #[test]
    fn requests_are_the_same_in_any_order_of_their_fields() {
        let first = print(r#"{"seed": 7, "messages": [{"role": "user", "content": "a"}], "n": 1}"#);
        for same in [
            r#"{"n":1,"messages":[{"content":"a","role":"user"}],"seed":7}"#,
            r#"{"n": 1, "messages": [{"content": "\u0061", "role": "user"}], "seed": 7, "stop": null}"#,
            r#"{"n": 1, "messages": [{"content": "a", "role": "user"}], "seed": 7, "stream": true}"#,
        ] {
            assert_eq!(print(same), first, "{same}");
        }
        for other in [
            r#"{"n": 2, "messages": [{"content": "a", "role": "user"}], "seed": 7}"#,
            r#"{"n": 1, "messages": [{"content": "a", "role": "user", "name": null}], "seed": 7}"#,
            r#"{"n": 1, "messages": [{"content": "b", "role": "user"}], "seed": 7}"#,
        ] {
            assert_ne!(print(other), first, "{other}");
        }
        assert_ne!(print(r#"{"prompt": ["a", "b"]}"#), print(r#"{"prompt": ["b", "a"]}"#));
    }

    /// Ignored fields may hold what cannot be compared as JSON.
    #[test]
    fn requests_beyond_json_values_differ_by_their_bytes() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        let with = |prompt: &str, odd: &str| print(&format!(r#"{{"prompt": "{prompt}", "user": {odd}}}"#));
        for odd in [&deep[..], "1e999"] {
            assert_eq!(with("a", odd), with("a", odd));
            assert_ne!(with("a", odd), with("b", odd));
        }
    }

    #[test]
    fn a_cancelled_answer_has_not_stopped() {
        let reasons = [Reason::Stop, Reason::Length, Reason::Cancelled].map(finish_reason);
        assert_eq!(reasons, ["stop", "length", "abort"]);
    }
}
