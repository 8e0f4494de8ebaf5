//! `POST /v1/completions`: the request as sent, and what it means once valid.

use engine::SamplingRange;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::super::{
    GenerateParams, LogitBiasField, SpeculationField, StopField, StreamOptions, ValidRequest, alternatives,
    choices, error::ApiError, idempotency, logit_bias, number, priority, refuse, reply, speculation,
    stop_strings, timeout, top_k,
};
use crate::sampling::Overrides;

/// OpenAI's default for this wire.
const DEFAULT_MAX_TOKENS: usize = 16;
const MAX_PROMPTS: usize = 128;

#[derive(Debug, Deserialize)]
pub struct CompletionRequest {
    model: Option<String>,
    prompt: PromptField,
    echo: Option<bool>,
    suffix: Option<IgnoredAny>,
    best_of: Option<usize>,
    return_token_ids: Option<bool>,
    max_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    logit_bias: Option<LogitBiasField>,
    seed: Option<i64>,
    stop: Option<StopField>,
    ignore_eos: Option<bool>,
    n: Option<usize>,
    logprobs: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    priority: Option<String>,
    timeout: Option<f64>,
    speculation: Option<SpeculationField>,
    idempotency_key: Option<String>,
    cache_ttl_ms: Option<u64>,
    response_format: Option<IgnoredAny>,
}

#[derive(Debug)]
enum PromptField {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdLists(Vec<Vec<u32>>),
}

const PROMPTS: &str = "a string, an array of strings, an array of token ids, or an array of those";

/// A prompt, or an element of an array of prompts.
enum Element {
    Text(String),
    Id(u32),
    Elements(PromptField),
    Wrong,
}

/// Reads token ids directly: serde's untagged enums buffer every value in eight times the memory.
struct ElementVisitor {
    /// Levels of arrays that may follow.
    levels: usize,
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PromptField, D::Error> {
        match deserializer.deserialize_any(ElementVisitor { levels: 2 })? {
            Element::Text(text) => Ok(PromptField::Text(text)),
            Element::Elements(prompts) => Ok(prompts),
            Element::Id(_) | Element::Wrong => Err(D::Error::custom(format_args!("it must be {PROMPTS}"))),
        }
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for ElementVisitor {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str(PROMPTS)
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_owned()))
    }

    fn visit_u64<E>(self, id: u64) -> Result<Element, E> {
        Ok(u32::try_from(id).map_or(Element::Wrong, Element::Id))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_unit<E>(self) -> Result<Element, E> {
        Ok(Element::Wrong)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Element, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Element::Wrong)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Element, A::Error> {
        let (mut all, mut is_wrong) = (None, self.levels == 0);
        let levels = self.levels.saturating_sub(1);
        while let Some(element) = array.next_element_seed(ElementVisitor { levels })? {
            all = match (all, element) {
                _ if is_wrong => None,
                (None, Element::Text(text)) => Some(PromptField::Texts(vec![text])),
                (None, Element::Id(id)) => Some(PromptField::Ids(vec![id])),
                (None, Element::Elements(PromptField::Ids(ids))) if levels > 0 => {
                    Some(PromptField::IdLists(vec![ids]))
                }
                (Some(PromptField::Texts(mut texts)), Element::Text(text)) => {
                    texts.push(text);
                    Some(PromptField::Texts(texts))
                }
                (Some(PromptField::Ids(mut ids)), Element::Id(id)) => {
                    ids.push(id);
                    Some(PromptField::Ids(ids))
                }
                (Some(PromptField::IdLists(mut lists)), Element::Elements(PromptField::Ids(ids))) => {
                    lists.push(ids);
                    Some(PromptField::IdLists(lists))
                }
                _ => {
                    is_wrong = true;
                    None
                }
            };
        }
        // An empty array is a list of no ids.
        let all = all.unwrap_or_else(|| PromptField::Ids(vec![]));
        Ok(if is_wrong { Element::Wrong } else { Element::Elements(all) })
    }
}

/// What to complete.
#[derive(Debug, PartialEq)]
pub struct CompletionPrompts {
    /// At least one.
    pub prompts: Vec<PromptInput>,
    pub echo: bool,
    pub return_token_ids: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PromptInput {
    Text(String),
    Ids(Vec<u32>),
}

impl TryFrom<CompletionRequest> for ValidRequest<CompletionPrompts> {
    type Error = ApiError;

    fn try_from(request: CompletionRequest) -> Result<ValidRequest<CompletionPrompts>, ApiError> {
        refuse(&[
            ("suffix", request.suffix.is_some()),
            ("best_of", request.best_of.is_some_and(|best_of| best_of != request.n.unwrap_or(1))),
            ("response_format", request.response_format.is_some()),
        ])?;
        let echo = request.echo.unwrap_or(false);
        let max_tokens = request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        if max_tokens == 0 && !echo {
            return Err(ApiError::invalid("max_tokens", "max_tokens may be 0 only with `echo: true`"));
        }
        let logprobs = request.logprobs.map(|count| alternatives("logprobs", count)).transpose()?;
        Ok(ValidRequest {
            model: request.model,
            prompts: CompletionPrompts {
                prompts: request.prompt.split()?,
                echo,
                return_token_ids: request.return_token_ids.unwrap_or(false),
            },
            params: GenerateParams {
                overrides: Overrides {
                    max_tokens: Some(max_tokens.max(1)),
                    temperature: number(SamplingRange::TEMPERATURE, request.temperature)?,
                    top_p: number(SamplingRange::TOP_P, request.top_p)?,
                    top_k: top_k(request.top_k)?,
                    min_p: number(SamplingRange::MIN_P, request.min_p)?,
                    repetition_penalty: number(
                        SamplingRange::REPETITION_PENALTY,
                        request.repetition_penalty,
                    )?,
                    presence_penalty: number(SamplingRange::PRESENCE_PENALTY, request.presence_penalty)?,
                    frequency_penalty: number(SamplingRange::FREQUENCY_PENALTY, request.frequency_penalty)?,
                    logit_bias: logit_bias(request.logit_bias)?,
                    seed: request.seed.map(i64::cast_unsigned),
                },
                stop: stop_strings(request.stop)?,
                ignore_eos: request.ignore_eos.unwrap_or(false),
                n: choices(request.n)?,
                logprobs,
                prompt_logprobs: echo && logprobs.is_some(),
                prompt_only: max_tokens == 0,
                priority: priority(request.priority.as_deref())?,
                timeout: timeout(request.timeout)?,
                speculation: speculation(request.speculation)?,
                reply: reply(request.stream, request.stream_options)?,
            },
            idempotency: idempotency(request.idempotency_key, request.cache_ttl_ms)?,
        })
    }
}

impl PromptField {
    fn split(self) -> Result<Vec<PromptInput>, ApiError> {
        let prompts: Vec<PromptInput> = match self {
            PromptField::Text(text) => vec![PromptInput::Text(text)],
            PromptField::Texts(texts) => texts.into_iter().map(PromptInput::Text).collect(),
            PromptField::Ids(ids) => vec![PromptInput::Ids(ids)],
            PromptField::IdLists(lists) => lists.into_iter().map(PromptInput::Ids).collect(),
        };
        match prompts.len() {
            0 => Err(ApiError::invalid("prompt", "the prompt is empty; send at least one token")),
            1..=MAX_PROMPTS => Ok(prompts),
            count => {
                let message = format!("{count} prompts in one request; at most {MAX_PROMPTS}");
                Err(ApiError::invalid("prompt", message))
            }
        }
    }
}
