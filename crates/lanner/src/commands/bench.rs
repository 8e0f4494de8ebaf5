//! `lanner bench`: measures a model's speed, or its perplexity on a text. Results on stdout,
//! progress on stderr.

use std::{io::Write, path::Path, sync::Arc};

use engine::Engine;
use serde_json::json;

use super::{CommandError, perplexity::perplexity, speculate::compare};
use crate::{
    bench::{self, BenchReport, ModelReport, Picture, Run, Sample, Workload, machine},
    config::{BenchConfig, BenchWeights, Chart, ModelConfig, SpeedConfig},
    drafting,
    loading::{self, OpenError},
    model_files,
    source::Source,
    terminal::say,
};

/// # Errors
/// The model does not load or fails, a workload does not fit its context, or a file cannot be read
/// or written.
pub fn bench(model: &ModelConfig, config: &BenchConfig) -> Result<(), CommandError> {
    match config {
        BenchConfig::Perplexity { text, json } => measure_perplexity(model, text, *json),
        BenchConfig::Speed(config) => measure_speed(model, config),
        BenchConfig::Speculation(config) => compare(model, config),
    }
}

fn measure_perplexity(model: &ModelConfig, path: &Path, json: bool) -> Result<(), CommandError> {
    let source = Source::find(model.model.as_deref(), &model.hub).map_err(OpenError::from)?;
    let text = super::perplexity::read_text(&source.location, path)?;
    let found = perplexity(model, &text, &Arc::default())?;
    let (name, value, tokens) = (source.name, found.value, found.tokens);
    if json {
        let version = env!("CARGO_PKG_VERSION");
        let object =
            json!({ "lanner": version, "model": { "name": name }, "perplexity": value, "tokens": tokens });
        return Ok(writeln!(std::io::stdout(), "{object}")?);
    }
    Ok(writeln!(std::io::stdout(), "perplexity of {name} {value:.4} over {tokens} tokens")?)
}

fn measure_speed(model: &ModelConfig, config: &SpeedConfig) -> Result<(), CommandError> {
    let (name, checkpoint, options) = match &config.weights {
        BenchWeights::Random { shape, config, quantization } => {
            let checkpoint =
                engine::Checkpoint::Random { config: config.clone(), quantization: *quantization };
            (shape.clone(), checkpoint, model.options.clone())
        }
        BenchWeights::Model => {
            let source = Source::find(model.model.as_deref(), &model.hub).map_err(OpenError::from)?;
            let options = drafting::options(model, &source).map_err(OpenError::from)?;
            (source.name, model_files::checkpoint(source.location), options)
        }
    };
    let engine = loading::load_engine(&name, checkpoint, &options)?;
    let mut machine = machine::Machine::here();
    let shape = matches!(config.weights, BenchWeights::Random { .. }).then(|| name.clone());
    let report = ModelReport::new(name, shape, engine.info());
    machine.measure_reading();
    engine::profile::count_by_name(config.kernels);
    engine::profile::time_on_device(config.kernels);
    let runs = run_all(&engine, config)?;
    engine.stop();
    machine.measure_reading();
    let report = BenchReport { machine, model: report, runs };
    let text = match (config.json, config.kernels) {
        (true, _) => format!("{:#}\n", report.json()),
        (false, false) => report.text(),
        (false, true) => format!("{}\n{}", report.text(), report.kernels()),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    config.chart.as_ref().map_or(Ok(()), |chart| draw(&report.picture(), chart))
}

pub(super) fn draw(picture: &Picture, Chart { path, page }: &Chart) -> Result<(), CommandError> {
    let text = if *page { bench::html(picture) } else { bench::svg(picture) };
    std::fs::write(path, text).map_err(|error| CommandError::Write { path: path.clone(), error })
}

/// Runs every workload once per round, so that other load on the machine affects all alike.
fn run_all(engine: &Engine, config: &SpeedConfig) -> Result<Vec<Run>, CommandError> {
    let context = engine.info().context_length;
    if let Some(&Workload { prompt, generate, .. }) =
        config.workloads.iter().find(|workload| workload.prompt + workload.generate > context)
    {
        return Err(CommandError::Context { prompt, generate, context });
    }
    let mut samples: Vec<Vec<Sample>> = config.workloads.iter().map(|_| vec![]).collect();
    let mut peaks = vec![(None, 0); config.workloads.len()];
    for round in 0..config.warmup + config.repeats {
        for (i, &workload) in config.workloads.iter().enumerate() {
            machine::reset_peak_memory();
            let seed = (round * config.workloads.len() + i) as u64;
            let sample = bench::measure(engine, workload, seed)?;
            report_progress(round, config, workload, &sample);
            if round >= config.warmup {
                samples[i].push(sample);
                let (process, mlx) = peaks[i];
                peaks[i] = (machine::peak_memory().max(process), engine::peak_memory().max(mlx));
            }
        }
    }
    let measured = config.workloads.iter().zip(&samples).zip(peaks);
    Ok(measured
        .filter_map(|((&workload, samples), (process, mlx))| Run::new(workload, samples, process, mlx))
        .collect())
}

fn report_progress(round: usize, config: &SpeedConfig, workload: Workload, sample: &Sample) {
    let Workload { prompt, generate, batch, sampling } = workload;
    let round = match round.checked_sub(config.warmup) {
        Some(repeat) => format!("{} of {}", repeat + 1, config.repeats),
        None => "warm-up".into(),
    };
    let decode = sample.decode.map_or(String::new(), |speed| format!(", decode {speed:.1} tok/s"));
    say(format_args!(
        "lanner: {round}: prompt {prompt}, generate {generate}, batch {batch}, {}: \
         prefill {:.1} tok/s{decode}",
        sampling.name(),
        sample.prefill
    ));
}
