//! Measures a model through the engine that serves it: a prompt, decoding, and its drafters.

use engine::{Sampling, Speculate};
use serde_json::{Value, json};

use super::{Effort, TuneError, calibration::PROMPT};
use crate::{
    bench::{
        self, SamplingKind, Spread, Workload,
        speculate::{Case, ComparisonRow, PROMPT_CLASSES, PromptClass, round, rows},
    },
    config::ModelConfig,
    conversation,
    model::{Model, PromptError},
    terminal::say,
};

/// Speeds of a model on this machine.
pub(crate) struct MeasuredModel {
    pub name: String,
    /// Bytes of weights that the engine holds.
    pub weight_bytes: usize,
    pub format: String,
    /// Tokens of the measured prompt.
    pub prompt: usize,
    /// Tokens per second, of plain decoding.
    pub prefill: Spread,
    pub decode: Spread,
    /// Each drafter and `auto`; empty if the model has none.
    pub drafters: Vec<MeasuredDrafter>,
}

/// One way to speculate, on all texts.
pub(crate) struct MeasuredDrafter {
    /// In the notation of --speculate.
    pub mode: String,
    /// Speed relative to plain decoding in the same rounds: the geometric mean over texts.
    pub ratio: f64,
    pub drafted: usize,
    pub accepted: usize,
    /// Whether every answer equals that of plain decoding.
    pub identical: bool,
}

impl MeasuredDrafter {
    pub(super) fn json(&self) -> Value {
        json!({
            "speculate": self.mode,
            "ratio": self.ratio,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "identical": self.identical,
        })
    }
}

/// Loads the model that `config` names, and measures it.
///
/// # Errors
/// It does not load, or a request fails.
pub(crate) fn measure(config: &ModelConfig, effort: Effort) -> Result<MeasuredModel, TuneError> {
    let mut config = config.clone();
    // Prompts repeat, and their cost is measured. With auto, loading measures the cost of steps.
    (config.options.prefix_cache_bytes, config.options.disk_cache) = (0, None);
    config.options.speculate = Speculate::Auto;
    Model::open(&config)?.with(|model| measure_loaded(model, effort))
}

fn measure_loaded(model: &Model, effort: Effort) -> Result<MeasuredModel, TuneError> {
    let info = model.engine.info();
    let generate = effort.generate();
    let prompt = PROMPT.min(info.context_length.saturating_sub(generate) / 2).max(1);
    let workload = Workload { prompt, generate, batch: 1, sampling: SamplingKind::Greedy };
    let (mut prefill, mut decode) = (vec![], vec![]);
    for round in 0..=effort.repeats() {
        let sample = bench::measure(&model.engine, workload, round as u64)?;
        if round > 0 {
            prefill.push(sample.prefill);
            decode.extend(sample.decode);
        }
    }
    let (prefill, decode) = (Spread::of(prefill), Spread::of(decode));
    let (Some(prefill), Some(decode)) = (prefill, decode) else {
        return Err(engine::RequestError::EngineStopped.into());
    };
    let name = model.name.clone();
    say(format_args!(
        "lanner: {name}: prefill {:.1} tok/s, decode {:.1} tok/s",
        prefill.median, decode.median
    ));
    Ok(MeasuredModel {
        drafters: drafters(model, effort)?,
        name,
        weight_bytes: info.weight_bytes,
        format: info.weights.format.clone(),
        prompt,
        prefill,
        decode,
    })
}

/// Every drafter at its own depth, and `auto`, each beside plain decoding.
fn drafters(model: &Model, effort: Effort) -> Result<Vec<MeasuredDrafter>, TuneError> {
    let names = &model.engine.info().drafters;
    if names.is_empty() {
        return Ok(vec![]);
    }
    let fixed = names.iter().map(|name| Speculate::Fixed { drafter: (*name).into(), depth: None });
    let modes: Vec<Speculate> = [Speculate::Off].into_iter().chain(fixed).chain([Speculate::Auto]).collect();
    let (classes, prompts, generate, repeats) = match effort {
        Effort::Quick => (1, 1, 32, 1),
        Effort::Full => (PROMPT_CLASSES.len(), 2, 96, 2),
    };
    let (load, context) = (model.engine.step_times()?, model.engine.info().context_length);
    let mut found: Vec<ComparisonRow> = vec![];
    for class in &PROMPT_CLASSES[..classes] {
        let prompts = class.prompts().take(prompts).map(|text| ids(model, class, text));
        let mut prompts: Vec<Vec<u32>> = prompts.collect::<Result<_, _>>()?;
        // A small context has no room for some.
        prompts.retain(|ids| ids.len() + generate <= context);
        if prompts.is_empty() {
            continue;
        }
        let case = Case {
            class: class.name.into(),
            prompts,
            sampling: Sampling::default(),
            generate,
            ignore_eos: false,
            batch: 1,
        };
        // Alternating orders, so that no mode always follows the same one.
        let rounds = (0..repeats).map(|number| round(&model.engine, &case, &modes, number % 2 == 1));
        found.extend(rows(&case, &modes, &rounds.collect::<Result<Vec<_>, _>>()?, &load));
        say(format_args!("lanner: {}: drafters on {}", model.name, class.name));
    }
    Ok(modes[1..].iter().filter_map(|mode| MeasuredDrafter::of(&mode.to_string(), &found)).collect())
}

fn ids(model: &Model, class: &PromptClass, text: &str) -> Result<Vec<u32>, PromptError> {
    let conversation = conversation::prompt_for(vec![conversation::user(text)], Some(class.think));
    match model.chat_prompt(&conversation) {
        Ok(prompt) => Ok(prompt.ids),
        Err(PromptError::NoTemplate(_)) => Ok(model.text_prompt(text)?.ids),
        Err(error) => Err(error),
    }
}

impl MeasuredDrafter {
    /// From the rows of all texts; `None`: it has none.
    fn of(mode: &str, rows: &[ComparisonRow]) -> Option<MeasuredDrafter> {
        let own: Vec<&ComparisonRow> = rows.iter().filter(|row| row.mode == mode).collect();
        let logs = own.iter().map(|row| row.ratio.median.ln());
        (!own.is_empty()).then(|| MeasuredDrafter {
            mode: mode.into(),
            ratio: (logs.sum::<f64>() / own.len() as f64).exp(),
            drafted: own.iter().map(|row| row.drafted).sum(),
            accepted: own.iter().map(|row| row.accepted).sum(),
            identical: own.iter().all(|row| row.difference.is_none()),
        })
    }
}
