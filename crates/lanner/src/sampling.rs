//! Sampling parameters as callers set them: flags and config keys, and overrides of the model's
//! own.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
};

use clap::Args;
use engine::{RequestError, SamplingRange};
use serde::Deserialize;

/// How tokens are chosen; `[sampling]` in the config file. Defaults are those of the model's
/// generation_config.json.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Most tokens of the answer, without its thinking [default: the rest of the context].
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// Temperature, at most 100; 0 always takes the most likely token.
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Keep the smallest set of most likely tokens whose probabilities add up to this; above 0 and
    /// at most 1.
    #[arg(hide_short_help = true, long, allow_negative_numbers = true)]
    pub top_p: Option<f64>,
    /// Keep this many most likely tokens; 0 keeps all.
    #[arg(hide_short_help = true, long)]
    pub top_k: Option<usize>,
    /// Drop tokens less likely than this times the most likely one; between 0 and 1.
    #[arg(hide_short_help = true, long, allow_negative_numbers = true)]
    pub min_p: Option<f64>,
    /// Make tokens of the prompt and the answer less likely; between 0.01 and 100, 1 is off.
    #[arg(hide_short_help = true, long, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f64>,
    /// Subtracted once from the logit of every token already generated; between -100 and 100.
    #[arg(hide_short_help = true, long, allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// Subtracted from a token's logit for each time it was generated; between -100 and 100.
    #[arg(hide_short_help = true, long, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// The same seed gives the same answer [default: random].
    #[arg(
        hide_short_help = true,
        hide_short_help = true,
        hide_short_help = true,
        hide_short_help = true,
        hide_short_help = true,
        hide_short_help = true,
        long
    )]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// Flags, else config keys.
    ///
    /// # Errors
    /// A number is out of its range.
    pub fn overrides(self, file: SamplingArgs) -> Result<Overrides, RequestError> {
        let number = |range: SamplingRange, flag: Option<f64>, file: Option<f64>| {
            flag.or(file).map(|value| range.check(value)).transpose()
        };
        Ok(Overrides {
            max_tokens: self.max_tokens.or(file.max_tokens),
            temperature: number(SamplingRange::TEMPERATURE, self.temperature, file.temperature)?,
            top_p: number(SamplingRange::TOP_P, self.top_p, file.top_p)?,
            top_k: self.top_k.or(file.top_k),
            min_p: number(SamplingRange::MIN_P, self.min_p, file.min_p)?,
            repetition_penalty: number(
                SamplingRange::REPETITION_PENALTY,
                self.repetition_penalty,
                file.repetition_penalty,
            )?,
            presence_penalty: number(
                SamplingRange::PRESENCE_PENALTY,
                self.presence_penalty,
                file.presence_penalty,
            )?,
            frequency_penalty: number(
                SamplingRange::FREQUENCY_PENALTY,
                self.frequency_penalty,
                file.frequency_penalty,
            )?,
            seed: self.seed.or(file.seed),
            ..Overrides::default()
        })
    }
}

/// Values that a request or the command line sets; the rest is the model's default.
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
    /// A request for `ids` with these values over the model's defaults.
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

/// A number that outsiders cannot guess: the standard library seeds every `RandomState` from the
/// system.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
