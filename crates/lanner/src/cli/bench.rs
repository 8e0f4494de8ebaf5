//! Arguments of `lanner bench`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;

use super::{
    model::ModelArgs,
    values::{QuantizationMode, SpeculateArg},
};
use crate::bench::SamplingKind;

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Prompt lengths in tokens, separated by commas [default: 128,512; with --speculate and
    /// --shape 128].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub prompt: Vec<NonZeroUsize>,
    /// New tokens of each request [default: 64; with --speculate at most 320].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub generate: Vec<NonZeroUsize>,
    /// Concurrent requests [default: 1,4; with --speculate 1,8].
    #[arg(long, value_name = "REQUESTS", value_delimiter = ',')]
    pub batch: Vec<NonZeroUsize>,
    /// How tokens are sampled: penalty has presence and frequency penalties, top-logprobs reports
    /// 20 log-probabilities per token, random has a temperature, top-k and top-p.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "greedy",
          conflicts_with_all = ["speculate", "perplexity"])]
    pub sampling: Vec<SamplingKind>,
    /// Compare speculative decoding with plain decoding on several kinds of texts: `all` runs every
    /// drafter of the model at several depths and auto; a list takes auto, NAME, NAME:DEPTH and
    /// self:lossy. Fails if an answer differs from that of plain decoding, except for self:lossy.
    #[arg(long, value_name = "LIST|all", value_delimiter = ',', num_args = 0..=1, default_missing_value = "all",
          conflicts_with_all = ["perplexity", "kernels"])]
    pub speculate: Option<Vec<SpeculateArg>>,
    /// With --speculate: kinds of texts: prose, copying, json, arithmetic, chat [default: all].
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        requires = "speculate",
        conflicts_with = "shape"
    )]
    pub texts: Vec<String>,
    /// With --speculate and --shape: also draft from a script with these acceptance rates, between
    /// 0 and 1 [default: 0,0.5,0.8,1].
    #[arg(long, value_name = "RATES", value_delimiter = ',', requires_all = ["speculate", "shape"], value_parser = rate)]
    pub scripted: Vec<f64>,
    /// Measured rounds.
    #[arg(long, value_name = "ROUNDS", default_value = "3")]
    pub repeats: NonZeroUsize,
    /// Unmeasured rounds before the measured ones.
    #[arg(long, value_name = "ROUNDS", default_value = "1")]
    pub warmup: usize,
    /// Use random weights made in memory instead of a model: qwen3.5-0.8b, qwen3.5-4b, llama-8b,
    /// qwen3.5-9b, qwen3-30b, qwen3.6-35b, gpt-oss-20b, gemma-3-4b, or the shape that a config.json
    /// describes. gpt-oss's experts are in MXFP4 unless all weights are bfloat16.
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["model", "ngram_table", "draft_model"])]
    pub shape: Option<String>,
    /// With --shape: format of the random weights.
    #[arg(long, default_value = "affine", requires = "shape")]
    pub mode: QuantizationMode,
    /// With --shape: bits per weight, as in lanner quantize [default: 4].
    #[arg(long, requires = "shape")]
    pub bits: Option<i32>,
    /// With --shape: weights that share a scale, as in lanner quantize [default: 64].
    #[arg(long, value_name = "WEIGHTS", requires = "shape")]
    pub group_size: Option<i32>,
    /// With --shape: bfloat16 instead of quantised weights.
    #[arg(long, requires = "shape", conflicts_with_all = ["mode", "bits", "group_size"])]
    pub unquantized: bool,
    /// Also show the time of each kernel per prompt token and per generated token, in milliseconds;
    /// JSON always has it. Kernels of our own on a GPU are then waited for and timed there, which
    /// makes everything slower; without this option their times are those of launching them.
    #[arg(long)]
    pub kernels: bool,
    /// Measure the model's perplexity on this text instead of its speed.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["prompt", "generate", "batch", "repeats", "warmup", "shape", "chart", "kernels"])]
    pub perplexity: Option<PathBuf>,
    /// Also draw the speeds: a picture as .svg, or a page with the table as .html.
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
    rate.ok_or_else(|| "it must be a number between 0 and 1".into())
}
