//! Fields of request bodies that need a type of their own, and the checks that each field must
//! pass.

use std::{collections::BTreeMap, fmt, time::Duration};

use engine::{MAX_DEPTH, Priority, SamplingRange, Speculate};
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use super::{
    error::ApiError,
    params::{Idempotency, Reply},
};
use crate::{
    keep_alive::KeepAlive,
    server::schema::{each_number, words},
};

pub(crate) const MAX_CHOICES: usize = 16;
pub(crate) const MAX_STOP_STRINGS: usize = 16;
/// Matching costs time for every token generated.
pub(crate) const MAX_STOP_BYTES: usize = 1024;
pub(crate) const MAX_STOP_TOKENS: usize = 128;
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;
pub(crate) const MAX_KEY_BYTES: usize = 128;
pub(crate) const MAX_SALT_BYTES: usize = 512;
/// In milliseconds.
pub(crate) const MAX_TTL: u64 = 60_000;
/// In seconds: about thirty years.
pub(crate) const MAX_TIMEOUT: f64 = 1e9;
/// Values of `priority`.
pub(crate) const PRIORITIES: [&str; 3] = [INTERACTIVE, NORMAL, BACKGROUND];
const INTERACTIVE: &str = "interactive";
const NORMAL: &str = "normal";
const BACKGROUND: &str = "background";

#[derive(Debug, Deserialize, JsonSchema)]
pub struct StreamOptions {
    /// End the stream with a chunk that has `usage`.
    #[schemars(extend("default" = false))]
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "`auto`, `off` or an object with `drafter`")]
pub enum SpeculationField {
    Word(#[schemars(transform = words(["auto", "off"]))] String),
    Drafter {
        /// One of the model's drafters.
        drafter: String,
        /// Most tokens of a draft.
        #[schemars(range(max = MAX_DEPTH))]
        depth: Option<usize>,
        /// Only with the drafter `self`: skip layers without verification.
        lossy: Option<bool>,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or an array of strings")]
pub enum StopField {
    One(#[schemars(length(min = 1, max = MAX_STOP_BYTES))] String),
    Many(
        #[schemars(length(max = MAX_STOP_STRINGS), inner(length(min = 1, max = MAX_STOP_BYTES)))] Vec<String>,
    ),
}

/// `logit_bias` as sent, in its order; a token id may occur twice.
#[derive(Debug, JsonSchema)]
#[schemars(transparent)]
pub struct LogitBiasField(
    #[schemars(with = "BTreeMap<u32, f64>", transform = each_number(SamplingRange::LOGIT_BIAS))]
    Vec<(String, f64)>,
);

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

pub fn idempotency(key: Option<String>, ttl: Option<u64>) -> Result<Option<Idempotency>, ApiError> {
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

/// vLLM's field: requests with different salts share no cached prefixes.
pub fn cache_salt(salt: Option<String>) -> Result<Option<String>, ApiError> {
    match salt {
        Some(salt) if !(1..=MAX_SALT_BYTES).contains(&salt.len()) => {
            let message = format!("cache_salt must have 1 to {MAX_SALT_BYTES} bytes");
            Err(ApiError::invalid("cache_salt", message))
        }
        salt => Ok(salt),
    }
}

/// LM Studio's name: seconds that the model stays loaded after the request; a negative number is
/// for ever.
pub fn ttl(seconds: Option<f64>) -> Result<Option<KeepAlive>, ApiError> {
    let Some(seconds) = seconds else { return Ok(None) };
    match KeepAlive::from_seconds(seconds) {
        Some(keep_alive) => Ok(Some(keep_alive)),
        None => Err(ApiError::invalid("ttl", format!("ttl is {seconds:?}; it must be a number of seconds"))),
    }
}

pub fn priority(name: Option<&str>) -> Result<Priority, ApiError> {
    match name {
        Some(INTERACTIVE) => Ok(Priority::Interactive),
        Some(NORMAL) | None => Ok(Priority::Normal),
        Some(BACKGROUND) => Ok(Priority::Background),
        Some(name) => {
            let message = format!("priority is `{name}`; it must be {INTERACTIVE}, {NORMAL} or {BACKGROUND}");
            Err(ApiError::invalid("priority", message))
        }
    }
}

pub fn speculation(field: Option<SpeculationField>) -> Result<Option<Speculate>, ApiError> {
    match field {
        None => Ok(None),
        Some(SpeculationField::Drafter { drafter, depth, lossy: Some(true) }) => match (&*drafter, depth) {
            ("self", None) => Ok(Some(Speculate::Lossy)),
            ("self", Some(_)) => {
                let message = "the lossy form of self verifies no drafts, so it takes no depth";
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

pub fn timeout(seconds: Option<f64>) -> Result<Option<Duration>, ApiError> {
    match seconds {
        Some(seconds) if !(seconds > 0.0 && seconds <= MAX_TIMEOUT) => {
            let message =
                format!("timeout is {seconds:?}; it must be above 0 and at most {MAX_TIMEOUT} seconds");
            Err(ApiError::invalid("timeout", message))
        }
        seconds => Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())),
    }
}

pub fn reply(stream: Option<bool>, options: Option<StreamOptions>) -> Result<Reply, ApiError> {
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

/// As in llama-server, for streams only.
pub fn return_progress(wanted: Option<bool>, stream: Option<bool>) -> Result<bool, ApiError> {
    match wanted.unwrap_or(false) {
        true if !stream.unwrap_or(false) => {
            Err(ApiError::invalid("return_progress", "return_progress only goes with `stream: true`"))
        }
        wanted => Ok(wanted),
    }
}

pub fn stop_strings(stop: Option<StopField>) -> Result<Vec<String>, ApiError> {
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

pub fn stop_token_ids(ids: Option<Vec<u32>>) -> Result<Vec<u32>, ApiError> {
    let ids = ids.unwrap_or_default();
    match ids.len() {
        0..=MAX_STOP_TOKENS => Ok(ids),
        _ => {
            let message = format!("stop_token_ids takes at most {MAX_STOP_TOKENS} ids");
            Err(ApiError::invalid("stop_token_ids", message))
        }
    }
}

pub fn choices(n: Option<usize>) -> Result<usize, ApiError> {
    match n.unwrap_or(1) {
        n @ 1..=MAX_CHOICES => Ok(n),
        n => Err(ApiError::invalid("n", format!("n is {n}; it must be between 1 and {MAX_CHOICES}"))),
    }
}

pub fn top_logprobs(param: &'static str, count: usize) -> Result<usize, ApiError> {
    if count <= MAX_TOP_LOGPROBS {
        return Ok(count);
    }
    let message = format!("{param} is {count}; it must be between 0 and {MAX_TOP_LOGPROBS}");
    Err(ApiError::invalid(param, message))
}

/// A sampling parameter, checked against its range.
pub fn number(range: SamplingRange, value: Option<f64>) -> Result<Option<f32>, ApiError> {
    let checked = value.map(|value| range.check(value)).transpose();
    checked.map_err(|error| ApiError::from_engine(&error, range.name))
}

pub fn logit_bias(biases: Option<LogitBiasField>) -> Result<BTreeMap<u32, f32>, ApiError> {
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

/// `top_k`; some clients send -1 for all tokens.
pub fn top_k(top_k: Option<i64>) -> Result<Option<usize>, ApiError> {
    match top_k {
        Some(k @ ..-1) => Err(ApiError::invalid(
            "top_k",
            format!("top_k is {k}; it must be 0 or more, or -1 for all tokens"),
        )),
        k => Ok(k.map(|k| usize::try_from(k).unwrap_or(0))),
    }
}

/// Rejects fields that would change the answer and are not supported.
pub fn refuse(fields: &[(&str, bool)]) -> Result<(), ApiError> {
    match fields.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(ApiError::unsupported(name)),
        None => Ok(()),
    }
}
