//! Sampling as callers ask for it: every value optional, on top of what the model suggests.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
};

/// What a request or the command line sets; the rest comes from the model's generation_config.json.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// `None`: the rest of the context, or of what fits into memory.
    pub max_tokens: Option<usize>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<usize>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub logit_bias: BTreeMap<u32, f32>,
    /// `None`: a random one.
    pub seed: Option<u64>,
}

impl Overrides {
    /// A request for `ids` with these values on top of the model's own.
    pub fn request(&self, ids: Vec<u32>, info: &engine::ModelInfo) -> engine::Request {
        let rest = info.memory.most_tokens(info.context_length).saturating_sub(ids.len()).max(1);
        engine::Request {
            sampling: self.sampling(&info.default_sampling),
            ..engine::Request::new(ids, self.max_tokens.unwrap_or(rest))
        }
    }

    pub fn sampling(&self, defaults: &engine::Sampling) -> engine::Sampling {
        engine::Sampling {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random),
        }
    }
}

/// A number nobody can guess from the outside: the standard library seeds every `RandomState` from the system.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
