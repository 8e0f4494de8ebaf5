//! Properties of a loaded model.

use super::{
    image::Vision,
    memory::Memory,
    options::{Precision, Speculate},
    sampling::Sampling,
};

/// Properties of a loaded model; fixed for the life of an engine.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `model_type` of config.json.
    pub model_type: String,
    /// Number of token ids: logits have this length.
    pub vocab_size: usize,
    /// Longest prompt plus output, in tokens.
    pub context_length: usize,
    /// A text encoder: embeddings by [`Pooling::Mean`](crate::Pooling::Mean) are all it makes.
    pub is_encoder: bool,
    /// Whether requests may have images.
    pub vision: Vision,
    /// From generation_config.json and config.json together; the tokenizer's if neither names one.
    pub eos_ids: Vec<u32>,
    /// Drafters that requests may name.
    pub drafters: Vec<&'static str>,
    /// Speculation of requests that do not name any.
    pub speculate: Speculate,
    /// generation_config.json's sampling parameters; `temperature` is 0 if it says `do_sample:
    /// false`.
    pub default_sampling: Sampling,
    /// Size of all weights in memory, in bytes.
    pub weight_bytes: usize,
    /// Summary of the weights, for measurements.
    pub weights: WeightSummary,
    /// Memory of weights, steps and state.
    pub memory: Memory,
}

impl ModelInfo {
    /// Whether a request with this speculation (`None`: the engine's default) may get an answer
    /// other than the model's.
    pub fn is_lossy(&self, asked: Option<&Speculate>) -> bool {
        *asked.unwrap_or(&self.speculate) == Speculate::Lossy
    }
}

/// A model's weights, for measurements.
#[derive(Clone, Debug, Default)]
pub struct WeightSummary {
    /// Number of parameters, without the scales of quantised weights.
    pub parameters: usize,
    /// The format of most bytes: `affine 4-bit, group 64`, `mxfp4`, `bfloat16`.
    pub format: String,
    /// Precision of products with the weights; `None` on a GPU where MLX decides it.
    pub precision: Option<Precision>,
    /// Parameters of the layers that compute a prompt token: those of its experts, and no embedding
    /// or head. `None` as for `reads`.
    pub active_parameters: Option<usize>,
    /// `None` if the model has experts and does not say how many of them a token takes.
    pub reads: Option<WeightReads>,
    /// Where the weights lie; `None`: in the host's memory.
    pub gpu: Option<Gpu>,
}

/// A GPU, for measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// With the compute capability, if it is one of NVIDIA's.
    pub name: String,
    /// Bytes that its memory can deliver per second, by clock and width; `None` if they are not
    /// known.
    pub memory_bandwidth: Option<f64>,
}

/// Bytes of weights that a step reads, without single rows of embedding tables.
#[derive(Clone, Copy, Debug)]
pub struct WeightReads {
    /// Once in each step, for all tokens in it together.
    pub every_step: usize,
    /// Bytes of the experts that a token takes; tokens of one step may share some.
    pub per_token: usize,
}
