//! What a loaded model is.

use super::{
    memory::Memory,
    options::{Precision, Speculate},
    request::Sampling,
};

/// What a loaded model is; fixed for the life of an engine.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `model_type` of config.json.
    pub model_type: String,
    pub vocab_size: usize,
    /// Longest prompt plus output, in tokens.
    pub context_length: usize,
    /// From generation_config.json and config.json together; the tokenizer's if neither names one.
    pub eos_ids: Vec<u32>,
    /// Drafters that requests may name.
    pub drafters: Vec<&'static str>,
    /// What requests get that do not say who drafts.
    pub speculate: Speculate,
    /// generation_config.json's sampling parameters; `temperature` is 0 if it says `do_sample:
    /// false`.
    pub default_sampling: Sampling,
    /// Size of all weights in memory, in bytes.
    pub weight_bytes: usize,
    pub weights: WeightSummary,
    pub memory: Memory,
}

impl ModelInfo {
    /// Whether a request that asks so for drafts may get another answer than the model's.
    pub fn is_lossy(&self, asked: Option<&Speculate>) -> bool {
        *asked.unwrap_or(&self.speculate) == Speculate::Lossy
    }
}

/// A model's weights, for measurements.
#[derive(Clone, Debug, Default)]
pub struct WeightSummary {
    /// Numbers that the weights stand for, scales of quantised ones not among them.
    pub parameters: usize,
    /// That of most bytes: `affine 4-bit, group 64`, `mxfp4`, `bfloat16`.
    pub format: String,
    /// In which products with them are computed; `None` on a GPU, where it is MLX's.
    pub precision: Option<Precision>,
    /// `None` if the model has experts and does not say how many of them a token takes.
    pub reads: Option<WeightReads>,
}

/// Bytes of weights that computing takes; single rows of tables are left out.
#[derive(Clone, Copy, Debug)]
pub struct WeightReads {
    /// Once in each step, for all tokens in it together.
    pub every_step: usize,
    /// Of the experts that a token takes; tokens of one step may share some.
    pub per_token: usize,
}
