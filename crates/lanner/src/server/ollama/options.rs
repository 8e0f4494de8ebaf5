//! `options` of a request: sampling in Ollama's names, and hints on how to run a model.

use engine::SamplingRange;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::server::{
    openai::{
        self,
        error::ApiError,
        fields::{self, StopField},
    },
    schema::number,
};

/// Options on memory, threads and the length of the context, which Lanner decides by itself; and
/// those of samplers that are off.
const HINTS: [&str; 16] = [
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "mirostat_eta",
    "mirostat_tau",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// The options that change answers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaOptions", transform = add_hints)]
pub(super) struct Options {
    /// Maximum number of new tokens; up to 0: as many as fit.
    num_predict: Option<i64>,
    #[schemars(transform = number(SamplingRange::TEMPERATURE))]
    temperature: Option<f64>,
    #[schemars(transform = number(SamplingRange::TOP_P))]
    top_p: Option<f64>,
    #[schemars(range(min = -1))]
    top_k: Option<i64>,
    #[schemars(transform = number(SamplingRange::MIN_P))]
    min_p: Option<f64>,
    /// Penalty of tokens in the prompt and the whole answer; 1 is off.
    #[schemars(transform = number(SamplingRange::REPETITION_PENALTY))]
    repeat_penalty: Option<f64>,
    /// 0: no penalty; -1: of the whole text.
    repeat_last_n: Option<i64>,
    #[schemars(transform = number(SamplingRange::PRESENCE_PENALTY))]
    presence_penalty: Option<f64>,
    #[schemars(transform = number(SamplingRange::FREQUENCY_PENALTY))]
    frequency_penalty: Option<f64>,
    seed: Option<i64>,
    #[schemars(with = "Option<StopField>")]
    stop: Option<Value>,
    /// Only 1, which is off.
    tfs_z: Option<f64>,
    /// Only 1, which is off.
    typical_p: Option<f64>,
    /// Only 0, which is off.
    mirostat: Option<i64>,
    /// Only true.
    penalize_newline: Option<bool>,
}

/// The options without effect.
fn add_hints(schema: &mut Schema) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.extend(HINTS.map(|name| (name.to_owned(), json!({ "description": "No effect." }))));
    }
}

impl Options {
    /// # Errors
    /// 400: an option is unknown, unsupported or of the wrong type.
    pub(super) fn parse(options: Option<Map<String, Value>>) -> Result<Options, ApiError> {
        let mut options = options.unwrap_or_default();
        options.retain(|name, value| !HINTS.contains(&&**name) && !value.is_null());
        let text = Value::Object(options).to_string();
        let options: Options = openai::parse(text.as_bytes())
            .map_err(|error| ApiError::invalid("options", format!("options: {}", error.body.message)))?;
        fields::refuse(&[
            ("options.tfs_z", options.tfs_z.is_some_and(|z| z != 1.0)),
            ("options.typical_p", options.typical_p.is_some_and(|p| p != 1.0)),
            ("options.mirostat", options.mirostat.is_some_and(|mode| mode != 0)),
            ("options.penalize_newline", options.penalize_newline == Some(false)),
        ])?;
        options.check_penalty()?;
        Ok(options)
    }

    /// The penalty counts the prompt and the whole answer.
    fn check_penalty(&self) -> Result<(), ApiError> {
        let penalizes = self.repeat_penalty.is_some_and(|penalty| penalty != 1.0);
        match self.repeat_last_n {
            Some(last) if penalizes && last > 0 => {
                let message =
                    "options.repeat_last_n can be 0, for no repeat_penalty, or -1: it counts the whole text";
                Err(ApiError::invalid("options.repeat_last_n", message))
            }
            _ => Ok(()),
        }
    }

    /// Most new tokens; `None`: as many as fit.
    pub(super) fn max_tokens(&self) -> Option<usize> {
        self.num_predict.and_then(|most| usize::try_from(most).ok()).filter(|most| *most > 0)
    }

    /// The fields of OpenAI's routes.
    pub(super) fn into_fields(self) -> Map<String, Value> {
        let max_tokens = self.max_tokens();
        let repeat_penalty = self.repeat_penalty.filter(|_| self.repeat_last_n != Some(0));
        let fields = [
            ("max_tokens", json!(max_tokens)),
            ("temperature", json!(self.temperature)),
            ("top_p", json!(self.top_p)),
            ("top_k", json!(self.top_k)),
            ("min_p", json!(self.min_p)),
            ("repetition_penalty", json!(repeat_penalty)),
            ("presence_penalty", json!(self.presence_penalty)),
            ("frequency_penalty", json!(self.frequency_penalty)),
            ("seed", json!(self.seed)),
            ("stop", json!(self.stop)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: Value) -> Result<Options, ApiError> {
        Options::parse(options.as_object().cloned())
    }

    #[test]
    fn options_become_the_fields_of_openai() {
        let options = json!({ "num_predict": 7, "repeat_penalty": 1.1, "stop": ["a"], "seed": 3, "num_ctx": 4096,
                              "num_thread": 8, "top_k": null, "repeat_last_n": -1 });
        let fields = parse(options).unwrap().into_fields();
        assert_eq!((&fields["max_tokens"], &fields["stop"]), (&json!(7), &json!(["a"])));
        assert_eq!((&fields["repetition_penalty"], &fields["seed"]), (&json!(1.1), &json!(3)));
        assert_eq!(parse(json!({ "num_predict": -1 })).unwrap().max_tokens(), None);
        let off = parse(json!({ "repeat_penalty": 1.5, "repeat_last_n": 0 })).unwrap().into_fields();
        assert_eq!(off["repetition_penalty"], Value::Null);
    }

    #[test]
    fn option_that_cannot_be_honoured_is_refused_by_name() {
        for (options, name) in [
            (json!({ "mirostat": 2 }), "options.mirostat"),
            (json!({ "tfs_z": 0.5 }), "options.tfs_z"),
            (json!({ "repeat_penalty": 1.1, "repeat_last_n": 64 }), "options.repeat_last_n"),
            (json!({ "temprature": 1 }), "temprature"),
            (json!({ "temperature": "hot" }), "temperature"),
        ] {
            let error = parse(options.clone()).unwrap_err();
            assert!(error.body.message.contains(name), "{options}: {}", error.body.message);
        }
        assert!(parse(json!({ "mirostat": 0, "typical_p": 1, "tfs_z": 1.0 })).is_ok());
    }
}
