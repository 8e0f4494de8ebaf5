//! Request bodies: reading JSON, and the fields that chat and text completions share.

use std::sync::Arc;

use chat::tools::ToolSet;
use engine::SamplingRange;
use serde::de::DeserializeOwned;

use super::{
    accepted,
    constraint::FormatFields,
    error::ApiError,
    fields,
    params::{GenerateParams, ValidRequest},
};
use crate::sampling::Overrides;

/// Declares a request body: the fields of one route, and the optional ones of both, which
/// `take_shared` returns. With `#[serde(flatten)]` an error would no longer name its field.
macro_rules! request_body {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:ident: $own_type:ty,)* }) => {
        request_body! {
            @with_shared [$(#[$meta])*] $name { $($own: $own_type,)* }
            model: String,
            max_tokens: usize,
            temperature: f64,
            top_p: f64,
            top_k: i64,
            min_p: f64,
            repetition_penalty: f64,
            presence_penalty: f64,
            frequency_penalty: f64,
            logit_bias: $crate::server::openai::fields::LogitBiasField,
            seed: i64,
            stop: $crate::server::openai::fields::StopField,
            stop_token_ids: Vec<u32>,
            response_format: $crate::server::openai::constraint::ResponseFormatField,
            guided_json: serde_json::Value,
            guided_regex: String,
            guided_choice: Vec<String>,
            guided_grammar: String,
            guided_whitespace_pattern: String,
            structured_outputs: $crate::server::openai::constraint::StructuredOutputsField,
            grammar: String,
            json_schema: serde_json::Value,
            format: serde_json::Value,
            ignore_eos: bool,
            n: usize,
            stream: bool,
            stream_options: $crate::server::openai::fields::StreamOptions,
            priority: String,
            timeout: f64,
            speculation: $crate::server::openai::fields::SpeculationField,
            idempotency_key: String,
            cache_ttl_ms: u64,
            cache_salt: String,
            return_progress: bool,
            user: String,
            safety_identifier: String,
            service_tier: String,
            prompt_cache_key: String,
            prompt_cache_retention: String,
        }
    };
    (
        @with_shared [$(#[$meta:meta])*] $name:ident { $($own:ident: $own_type:ty,)* }
        $($field:ident: $type:ty,)*
    ) => {
        $(#[$meta])*
        #[derive(Debug, serde::Deserialize)]
        #[allow(unreachable_pub, reason = "some bodies are only used in this crate")]
        pub struct $name {
            $($own: $own_type,)*
            $(pub(in crate::server::openai) $field: Option<$type>,)*
        }

        impl $name {
            #[allow(dead_code)]
            pub(in crate::server::openai) fn take_shared(&mut self) -> $crate::server::openai::request::SharedFields {
                $crate::server::openai::request::SharedFields { $($field: self.$field.take(),)* }
            }

            #[allow(dead_code)]
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
}

impl SharedFields {
    /// # Errors
    /// 400 that names the first field with an invalid value.
    pub(super) fn validate<P>(self, prompts: P, route: RouteParams) -> Result<ValidRequest<P>, ApiError> {
        let number = fields::number;
        let ignore_eos = self.ignore_eos.unwrap_or(false);
        accepted::service_tier(self.service_tier.as_deref())?;
        accepted::prompt_cache_retention(self.prompt_cache_retention.as_deref())?;
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
        };
        let format = format.validate()?;
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
            },
            idempotency: fields::idempotency(self.idempotency_key, self.cache_ttl_ms)?,
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
                field if field == "." => ApiError::invalid_body(error.to_string()),
                field => ApiError::invalid(&field, format!("{field}: {error}")),
            }
        }
        _ => ApiError::invalid_body(format!("the body is not valid JSON: {error}")),
    })
}
