//! Request bodies: reading JSON, and the fields that chat and text completions share.

use std::sync::Arc;

use chat::tools::ToolSet;
use engine::SamplingRange;
use serde::de::DeserializeOwned;

use super::{
    accepted,
    constraint::FormatFields,
    error::{ApiError, json_error},
    fields,
    params::{GenerateParams, ValidRequest},
};
use crate::{sampling::Overrides, thinking::ThinkingParams};

/// Declares a request body: the fields of one route, and the optional ones of both, which
/// `take_shared` returns. With `#[serde(flatten)]` an error would no longer name its field.
macro_rules! request_body {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$about:meta])* $own:ident: $own_type:ty,)* }) => {
        request_body! {
            @with_shared [$(#[$meta])*] $name { $($(#[$about])* $own: $own_type,)* }
            /// A model on the machine; the default one if it is missing.
            model: String,
            /// Maximum number of new tokens.
            max_tokens: usize,
            /// 0 is greedy. By default the model's own, as the four fields after it.
            #[schemars(transform = crate::server::schema::number(engine::SamplingRange::TEMPERATURE))]
            temperature: f64,
            /// Keep the likeliest tokens whose probabilities reach this.
            #[schemars(transform = crate::server::schema::number(engine::SamplingRange::TOP_P))]
            top_p: f64,
            /// Keep this many of the likeliest tokens; 0 or -1 keeps all.
            #[schemars(range(min = -1))]
            top_k: i64,
            /// Drop tokens less likely than this times the likeliest.
            #[schemars(transform = crate::server::schema::number(engine::SamplingRange::MIN_P))]
            min_p: f64,
            /// Makes tokens of the prompt and the answer less likely; 1 is off.
            #[schemars(transform = crate::server::schema::number(engine::SamplingRange::REPETITION_PENALTY))]
            repetition_penalty: f64,
            /// Subtracted once from the logit of each token that was generated.
            #[schemars(transform = crate::server::schema::number(engine::SamplingRange::PRESENCE_PENALTY))]
            #[schemars(extend("default" = 0))]
            presence_penalty: f64,
            /// Subtracted from a token's logit for each time that it was generated.
            #[schemars(transform = crate::server::schema::number(engine::SamplingRange::FREQUENCY_PENALTY))]
            #[schemars(extend("default" = 0))]
            frequency_penalty: f64,
            /// Numbers added to the logits of token ids.
            logit_bias: $crate::server::openai::fields::LogitBiasField,
            /// The same request with the same seed gives the same answer. Random by default.
            seed: i64,
            /// Texts before which the answer ends.
            stop: $crate::server::openai::fields::StopField,
            /// Tokens that end the answer, besides the model's own.
            #[schemars(length(max = crate::server::openai::fields::MAX_STOP_TOKENS))]
            stop_token_ids: Vec<u32>,
            /// The format that the answer must match.
            response_format: $crate::server::openai::constraint::ResponseFormatField,
            /// vLLM's: a JSON Schema that the answer matches.
            #[schemars(with = "Option<crate::server::schema::JsonSchemaField>")]
            guided_json: serde_json::Value,
            /// vLLM's: a regular expression that the answer matches.
            guided_regex: String,
            /// vLLM's: the answer is one of these texts.
            guided_choice: Vec<String>,
            /// vLLM's: a grammar in Lark or GBNF.
            guided_grammar: String,
            /// Not supported.
            #[schemars(with = "Option<crate::server::schema::Refused>")]
            guided_whitespace_pattern: String,
            /// vLLM's: what the answer must match.
            structured_outputs: $crate::server::openai::constraint::StructuredOutputsField,
            /// llama.cpp's: a grammar in GBNF or Lark.
            grammar: String,
            /// llama.cpp's: a JSON Schema that the answer matches.
            #[schemars(with = "Option<crate::server::schema::JsonSchemaField>")]
            json_schema: serde_json::Value,
            /// Ollama's: `json`, or a JSON Schema.
            #[schemars(with = "Option<crate::server::schema::OllamaFormatField>")]
            format: serde_json::Value,
            /// vLLM's: only 0.
            #[schemars(range(max = 0))]
            min_tokens: usize,
            /// vLLM's: not supported.
            #[schemars(with = "Option<crate::server::schema::Refused>")]
            allowed_token_ids: serde::de::IgnoredAny,
            /// vLLM's: only an empty list.
            #[schemars(length(max = 0))]
            bad_words: Vec<String>,
            /// vLLM's: only false.
            #[schemars(extend("enum" = [false, null]))]
            use_beam_search: bool,
            /// vLLM's: only false.
            #[schemars(extend("enum" = [false, null]))]
            include_stop_str_in_output: bool,
            /// vLLM's: not supported.
            #[schemars(with = "Option<crate::server::schema::Refused>")]
            truncate_prompt_tokens: serde::de::IgnoredAny,
            /// Continue after an end-of-sequence token.
            #[schemars(extend("default" = false))]
            ignore_eos: bool,
            /// Choices per prompt.
            #[schemars(range(min = 1, max = crate::server::openai::fields::MAX_CHOICES))]
            #[schemars(extend("default" = 1))]
            n: usize,
            /// Answer in server-sent events.
            #[schemars(extend("default" = false))]
            stream: bool,
            /// Only with `stream: true`.
            stream_options: $crate::server::openai::fields::StreamOptions,
            /// Priority in the queue.
            #[schemars(transform = crate::server::schema::words(crate::server::openai::fields::PRIORITIES))]
            #[schemars(extend("default" = "normal"))]
            priority: String,
            /// Seconds from the request's arrival to the end of its answer. None by default.
            #[schemars(transform = crate::server::schema::above_zero(crate::server::openai::fields::MAX_TIMEOUT))]
            timeout: f64,
            /// How tokens are drafted; the server's `--speculate` by default.
            speculation: $crate::server::openai::fields::SpeculationField,
            /// A request that is sent again with this key gets the answer of the first.
            #[schemars(length(min = 1, max = crate::server::openai::fields::MAX_KEY_BYTES))]
            idempotency_key: String,
            /// Milliseconds for which the answer is stored.
            #[schemars(range(max = crate::server::openai::fields::MAX_TTL))]
            #[schemars(extend("default" = crate::server::openai::fields::MAX_TTL))]
            cache_ttl_ms: u64,
            /// LM Studio's: seconds that the model stays loaded afterwards; negative: for ever.
            ttl: f64,
            /// Requests share stored prefixes only with requests of the same salt.
            cache_salt: String,
            /// llama.cpp's: report the prompt's progress. Only with `stream: true`.
            #[schemars(extend("default" = false))]
            return_progress: bool,
            /// No effect.
            user: String,
            /// No effect.
            safety_identifier: String,
            /// There is one tier; `priority` orders requests.
            #[schemars(transform = crate::server::schema::words(crate::server::openai::accepted::SERVICE_TIERS))]
            service_tier: String,
            /// No effect: the prefix cache finds what can be reused by itself.
            prompt_cache_key: String,
            /// No effect.
            #[schemars(transform = crate::server::schema::words(crate::server::openai::accepted::RETENTIONS))]
            prompt_cache_retention: String,
        }
    };
    (
        @with_shared [$(#[$meta:meta])*] $name:ident { $($(#[$about:meta])* $own:ident: $own_type:ty,)* }
        $($(#[$about_shared:meta])* $field:ident: $type:ty,)*
    ) => {
        #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
        // The fields of both routes are no body, and private.
        #[allow(unreachable_pub, reason = "private bodies too")]
        $(#[$meta])*
        pub struct $name {
            $($(#[$about])* $own: $own_type,)*
            $($(#[$about_shared])* pub(in crate::server::openai) $field: Option<$type>,)*
        }

        impl $name {
            #[allow(dead_code, reason = "not every body uses it")]
            pub(in crate::server::openai) fn take_shared(&mut self) -> $crate::server::openai::request::SharedFields {
                $crate::server::openai::request::SharedFields { $($field: self.$field.take(),)* }
            }

            #[allow(dead_code, reason = "not every body uses it")]
            pub(in crate::server::openai) fn put_shared(&mut self, fields: $crate::server::openai::request::SharedFields) {
                $(self.$field = fields.$field;)*
            }
        }
    };
}
pub(super) use request_body;

request_body! {
    /// The fields of both routes.
    pub struct SharedFields {}
}

/// Parameters that follow from a route's own fields.
pub(super) struct RouteParams {
    pub max_tokens: Option<usize>,
    pub logprobs: Option<usize>,
    pub prompt_logprobs: bool,
    pub prompt_only: bool,
    pub tools: Option<Arc<ToolSet>>,
    pub thinking: ThinkingParams,
}

impl SharedFields {
    /// Checks OpenAI's fields that have no effect, and refuses vLLM's without which the answer
    /// would be another one.
    fn check_unused(&self) -> Result<(), ApiError> {
        accepted::service_tier(self.service_tier.as_deref())?;
        accepted::prompt_cache_retention(self.prompt_cache_retention.as_deref())?;
        fields::refuse(&[
            ("min_tokens", self.min_tokens.is_some_and(|least| least > 0)),
            ("allowed_token_ids", self.allowed_token_ids.is_some()),
            ("bad_words", self.bad_words.as_ref().is_some_and(|words| !words.is_empty())),
            ("use_beam_search", self.use_beam_search == Some(true)),
            ("include_stop_str_in_output", self.include_stop_str_in_output == Some(true)),
            ("truncate_prompt_tokens", self.truncate_prompt_tokens.is_some()),
        ])
    }

    /// # Errors
    /// 400 that names the first field with an invalid value.
    pub(super) fn validate<P>(self, prompts: P, route: RouteParams) -> Result<ValidRequest<P>, ApiError> {
        let (number, ignore_eos) = (fields::number, self.ignore_eos.unwrap_or(false));
        self.check_unused()?;
        let format = FormatFields {
            response_format: self.response_format,
            guided_json: self.guided_json,
            guided_regex: self.guided_regex,
            guided_choice: self.guided_choice,
            guided_grammar: self.guided_grammar,
            guided_whitespace_pattern: self.guided_whitespace_pattern,
            structured_outputs: self.structured_outputs,
            grammar: self.grammar,
            json_schema: self.json_schema,
            format: self.format,
        }
        .validate()?;
        if let Some(format) = format.as_ref().filter(|_| ignore_eos) {
            let message = format!("ignore_eos and {} exclude each other", format.field);
            return Err(ApiError::invalid("ignore_eos", message));
        }
        if ignore_eos && route.tools.is_some() {
            return Err(ApiError::invalid("ignore_eos", "ignore_eos and tools exclude each other"));
        }
        Ok(ValidRequest {
            model: self.model,
            prompts,
            params: GenerateParams {
                overrides: Overrides {
                    max_tokens: route.max_tokens,
                    temperature: number(SamplingRange::TEMPERATURE, self.temperature)?,
                    top_p: number(SamplingRange::TOP_P, self.top_p)?,
                    top_k: fields::top_k(self.top_k)?,
                    min_p: number(SamplingRange::MIN_P, self.min_p)?,
                    repetition_penalty: number(SamplingRange::REPETITION_PENALTY, self.repetition_penalty)?,
                    presence_penalty: number(SamplingRange::PRESENCE_PENALTY, self.presence_penalty)?,
                    frequency_penalty: number(SamplingRange::FREQUENCY_PENALTY, self.frequency_penalty)?,
                    logit_bias: fields::logit_bias(self.logit_bias)?,
                    seed: self.seed.map(i64::cast_unsigned),
                },
                stop: fields::stop_strings(self.stop)?,
                stop_token_ids: fields::stop_token_ids(self.stop_token_ids)?,
                ignore_eos,
                format,
                n: fields::choices(self.n)?,
                logprobs: route.logprobs,
                prompt_logprobs: route.prompt_logprobs,
                prompt_only: route.prompt_only,
                tools: route.tools,
                priority: fields::priority(self.priority.as_deref())?,
                timeout: fields::timeout(self.timeout)?,
                speculation: fields::speculation(self.speculation)?,
                reply: fields::reply(self.stream, self.stream_options)?,
                return_progress: fields::return_progress(self.return_progress, self.stream)?,
                cache_salt: fields::cache_salt(self.cache_salt)?,
                thinking: route.thinking,
            },
            idempotency: fields::idempotency(self.idempotency_key, self.cache_ttl_ms)?,
            keep_alive: fields::ttl(self.ttl)?,
        })
    }
}

/// Reads a body as JSON; fields that `T` does not have are ignored and logged.
///
/// # Errors
/// 400 that names the field of the wrong type, or the position of invalid JSON.
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
                field if field == "." => ApiError::invalid_body(json_error(&error)),
                field => ApiError::invalid(&field, format!("{field}: {}", json_error(&error))),
            }
        }
        _ => ApiError::invalid_body(format!("the body is not valid JSON: {error}")),
    })
}
