//! Settings of `lanner bench`.

use std::{num::NonZeroUsize, path::PathBuf};

use engine::{Speculate, quantize::Quantization};

use super::{error::ConfigError, tools::quantization};
use crate::{
    bench::{
        SamplingKind, Shape, Workload,
        speculate::{PROMPT_CLASSES, PromptClass, SpeculationModes},
    },
    cli::{BenchArgs, ModelArgs, SpeculateArg},
};

pub enum BenchConfig {
    Perplexity { text: PathBuf, json: bool },
    Speed(SpeedConfig),
    Speculation(SpeculationConfig),
}

/// Speculation modes to compare with plain decoding.
pub struct SpeculationConfig {
    pub weights: BenchWeights,
    pub modes: SpeculationModes,
    /// Prompts for a model.
    pub texts: Vec<PromptClass>,
    /// Lengths of random prompts for random weights.
    pub prompts: Vec<usize>,
    /// Acceptance rates of a scripted drafter, for random weights.
    pub scripted: Vec<f64>,
    pub generate: Vec<usize>,
    pub batches: Vec<usize>,
    pub repeats: usize,
    pub warmup: usize,
    pub chart: Option<Chart>,
    pub json: bool,
}

pub struct SpeedConfig {
    pub weights: BenchWeights,
    pub workloads: Vec<Workload>,
    pub repeats: usize,
    pub warmup: usize,
    pub chart: Option<Chart>,
    /// Whether to show the time of each kernel.
    pub kernels: bool,
    pub json: bool,
}

pub enum BenchWeights {
    Model,
    /// Random weights of a config.json's shape.
    Random {
        shape: String,
        config: serde_json::Value,
        /// `None`: bfloat16.
        quantization: Option<Quantization>,
    },
}

pub struct Chart {
    pub path: PathBuf,
    /// HTML with the table instead of the picture alone.
    pub page: bool,
}

/// Sizes of the workloads.
struct Sizes {
    prompts: Vec<usize>,
    generate: Vec<usize>,
    batches: Vec<usize>,
}

/// The configuration, and the model's arguments that it needs.
pub(super) fn resolve(args: BenchArgs, file: &ModelArgs) -> Result<(ModelArgs, BenchConfig), ConfigError> {
    if let Some(text) = args.perplexity {
        return Ok((args.model, BenchConfig::Perplexity { text, json: args.json }));
    }
    let (weights, sizes) = (weights(&args)?, Sizes::new(&args));
    let BenchArgs { mut model, json, warmup, kernels, sampling, .. } = args;
    // All requests of a batch run together, unless --max-batch says otherwise.
    let batch = sizes.batches.iter().copied().max().unwrap_or(1);
    let max_batch = *model.max_batch.get_or_insert(file.max_batch.unwrap_or(batch));
    if batch > max_batch {
        return Err(ConfigError::Batch { batch, max_batch });
    }
    let (chart, repeats) = (args.chart.map(chart).transpose()?, args.repeats.get());
    let Some(modes) = args.speculate else {
        // Plain decoding is measured.
        model.speculate = Some(SpeculateArg(Speculate::Off));
        let workloads = sizes.workloads(&sampling);
        let speed = SpeedConfig { weights, workloads, repeats, warmup, chart, kernels, json };
        return Ok((model, BenchConfig::Speed(speed)));
    };
    if matches!(weights, BenchWeights::Model) && !args.prompt.is_empty() {
        return Err(ConfigError::PromptWithoutShape);
    }
    // With auto, loading measures the cost of steps.
    model.speculate = Some(SpeculateArg(Speculate::Auto));
    let Sizes { prompts, generate, batches } = sizes;
    let config = SpeculationConfig {
        weights,
        modes: speculation_modes(modes),
        texts: texts(&args.texts)?,
        prompts,
        scripted: if args.scripted.is_empty() { vec![0.0, 0.5, 0.8, 1.0] } else { args.scripted },
        generate,
        batches,
        repeats,
        warmup,
        chart,
        json,
    };
    Ok((model, BenchConfig::Speculation(config)))
}

fn weights(args: &BenchArgs) -> Result<BenchWeights, ConfigError> {
    let Some(name) = &args.shape else { return Ok(BenchWeights::Model) };
    let problem = |problem| ConfigError::Shape { name: name.clone(), problem };
    let Shape { name: shape, config } = Shape::find(name).map_err(problem)?;
    let quantization = quantization(args.mode, args.bits, args.group_size)?;
    Ok(BenchWeights::Random { shape, config, quantization: (!args.unquantized).then_some(quantization) })
}

impl Sizes {
    fn new(args: &BenchArgs) -> Sizes {
        let sizes = |flag: &[NonZeroUsize], plain: &[usize], speculate: &[usize]| match flag {
            [] if args.speculate.is_some() => speculate.to_vec(),
            [] => plain.to_vec(),
            flag => flag.iter().map(|size| size.get()).collect(),
        };
        Sizes {
            prompts: sizes(&args.prompt, &[128, 512], &[128]),
            generate: sizes(&args.generate, &[64], &[320]),
            batches: sizes(&args.batch, &[1, 4], &[1, 8]),
        }
    }

    /// Every combination, the kinds of sampling innermost: they are compared with each other.
    fn workloads(&self, sampling: &[SamplingKind]) -> Vec<Workload> {
        let mut workloads = vec![];
        for &prompt in &self.prompts {
            for &generate in &self.generate {
                for &batch in &self.batches {
                    let with = |&sampling| Workload { prompt, generate, batch, sampling };
                    workloads.extend(sampling.iter().map(with));
                }
            }
        }
        workloads
    }
}

/// A list that holds `all` stands for all.
fn speculation_modes(args: Vec<SpeculateArg>) -> SpeculationModes {
    let modes: Vec<Speculate> = args.into_iter().map(|arg| arg.0).collect();
    let all = Speculate::Fixed { drafter: "all".into(), depth: None };
    if modes.contains(&all) { SpeculationModes::All } else { SpeculationModes::Listed(modes) }
}

fn texts(names: &[String]) -> Result<Vec<PromptClass>, ConfigError> {
    let find = |name: &String| {
        let class = PROMPT_CLASSES.into_iter().find(|class| class.name == name);
        class.ok_or_else(|| ConfigError::Texts { name: name.clone() })
    };
    if names.is_empty() { Ok(PROMPT_CLASSES.to_vec()) } else { names.iter().map(find).collect() }
}

fn chart(path: PathBuf) -> Result<Chart, ConfigError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(Chart { path, page: false }),
        Some("html") => Ok(Chart { path, page: true }),
        _ => Err(ConfigError::Chart(path)),
    }
}
