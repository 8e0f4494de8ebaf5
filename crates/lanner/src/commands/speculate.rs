//! `lanner bench --speculate`: compares plain decoding with drafters and auto. Results on stdout,
//! progress on stderr.

use std::io::Write;

use engine::{Checkpoint, Engine, Options, Sampling, Script, Speculate};

use super::{CommandError, bench::draw};
use crate::{
    bench::{
        ModelReport, machine, random_ids,
        speculate::{Case, Comparison, ComparisonRow, PromptClass, Round, round, rows},
    },
    config::{BenchWeights, ModelConfig, SpeculationConfig},
    conversation,
    loading::OpenError,
    model::Model,
    terminal::say,
};

/// Seed of sampled answers.
const SEED: u64 = 7;
/// Prompts of random ids in a case, rounded up to whole batches.
const PROMPTS: usize = 4;

/// # Errors
/// The model does not load or fails, there is no such drafter, the chart cannot be written, or
/// answers differ from those of plain decoding, which is reported after the results.
pub(super) fn compare(model: &ModelConfig, config: &SpeculationConfig) -> Result<(), CommandError> {
    let mut options = model.options.clone();
    // Prompts repeat, and their cost is measured.
    (options.prefix_cache_bytes, options.disk_cache) = (0, None);
    let mut machine = machine::Machine::here();
    machine.measure_reading();
    let (model, rows) = match &config.weights {
        BenchWeights::Model => {
            let model = ModelConfig { options, ..model.clone() };
            Model::open(&model)?.with(|model| compare_on_texts(model, config))?
        }
        BenchWeights::Random { shape, config: shape_config, quantization } => {
            let checkpoint = Checkpoint::Random { config: shape_config.clone(), quantization: *quantization };
            compare_on_scripts(shape, &checkpoint, &options, config)?
        }
    };
    machine.measure_reading();
    let comparison = Comparison { machine, model, rows };
    let text = if config.json { format!("{:#}\n", comparison.json()) } else { comparison.text() };
    std::io::stdout().write_all(text.as_bytes())?;
    config.chart.as_ref().map_or(Ok(()), |chart| draw(&comparison.picture(), chart))?;
    let wrong = comparison.differences().into_iter().map(|(mode, at)| {
        format!("{mode}, from token {} of the answer to prompt {}", at.position + 1, at.prompt + 1)
    });
    let wrong: Vec<String> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(CommandError::AnswersDiffer(wrong.join("; "))) }
}

fn compare_on_texts(
    model: &Model,
    config: &SpeculationConfig,
) -> Result<(ModelReport, Vec<ComparisonRow>), CommandError> {
    let info = model.engine.info();
    let mut cases = vec![];
    for class in &config.texts {
        let prompts = prompts(model, class)?;
        for &generate in &config.generate {
            for &batch in &config.batches {
                for sampling in [Sampling::default(), sampled(&info.default_sampling)] {
                    let (class, prompts) = (class.name.to_owned(), prompts.clone());
                    cases.push(Case { class, prompts, sampling, generate, ignore_eos: false, batch });
                }
            }
        }
    }
    let report = ModelReport::new(model.name.clone(), None, info);
    let modes = config.modes.resolve(&info.drafters);
    Ok((report, run(&model.engine, &cases, &modes, config)?))
}

fn prompts(model: &Model, class: &PromptClass) -> Result<Vec<Vec<u32>>, CommandError> {
    let prompt = |text: &'static str| {
        let conversation = conversation::prompt_for(vec![conversation::user(text)], Some(class.think));
        Ok(model.chat_prompt(&conversation)?.ids)
    };
    class.prompts().map(prompt).collect()
}

/// The model's default sampling with a seed; temperature 1 if it is greedy.
fn sampled(defaults: &Sampling) -> Sampling {
    let temperature = if defaults.temperature > 0.0 { defaults.temperature } else { 1.0 };
    Sampling { temperature, seed: SEED, ..defaults.clone() }
}

/// Random weights answer random prompts; a scripted drafter knows the answers and drafts at a given
/// acceptance rate.
fn compare_on_scripts(
    shape: &str,
    checkpoint: &Checkpoint,
    options: &Options,
    config: &SpeculationConfig,
) -> Result<(ModelReport, Vec<ComparisonRow>), CommandError> {
    let load = |script: Script| {
        let wrong = |error| OpenError::Load { name: shape.into(), error };
        engine::start_scripted(checkpoint.clone(), options.clone(), script, |_| {}).map_err(wrong)
    };
    let plain = load(Script::default())?;
    let vocab_size = plain.info().vocab_size;
    let report = ModelReport::new(shape.into(), Some(shape.into()), plain.info());
    let cases = |class: &str| -> Vec<Case> {
        let mut cases = vec![];
        for &length in &config.prompts {
            for &generate in &config.generate {
                for &batch in &config.batches {
                    let count = PROMPTS.next_multiple_of(batch) as u64;
                    let prompts = (0..count).map(|i| random_ids(i, length, vocab_size)).collect();
                    let class = format!("{length} random ids, {class}");
                    let sampling = Sampling::default();
                    cases.push(Case { class, prompts, sampling, generate, ignore_eos: true, batch });
                }
            }
        }
        cases
    };
    let mut answers = vec![];
    for case in cases("") {
        let plain_round = round(&plain, &case, &[Speculate::Off], false)?.pop().unwrap_or_default();
        answers.extend(case.prompts.into_iter().zip(plain_round.answers));
    }
    plain.stop();
    // Longest first: the longest answer to a prompt begins with the others.
    answers.sort_by_key(|(_, answer)| std::cmp::Reverse(answer.len()));
    let modes = config.modes.resolve(&["scripted"]);
    let mut rows = vec![];
    for &acceptance_rate in &config.scripted {
        let vocab_size = u32::try_from(vocab_size).unwrap_or(u32::MAX);
        let engine = load(Script { answers: answers.clone(), acceptance_rate, vocab_size, seed: SEED })?;
        rows.extend(run(&engine, &cases(&format!("{acceptance_rate} right")), &modes, config)?);
        engine.stop();
    }
    Ok((report, rows))
}

/// Runs every case once per round, in all modes.
fn run(
    engine: &Engine,
    cases: &[Case],
    modes: &[Speculate],
    config: &SpeculationConfig,
) -> Result<Vec<ComparisonRow>, CommandError> {
    let load = engine.step_times()?;
    let mut rounds: Vec<Vec<Vec<Round>>> = cases.iter().map(|_| vec![]).collect();
    for number in 0..config.warmup + config.repeats {
        for (case, rounds) in cases.iter().zip(&mut rounds) {
            let found = round(engine, case, modes, number % 2 == 1)?;
            report_progress(number, config, case, modes, &found);
            if number >= config.warmup {
                rounds.push(found);
            }
        }
    }
    Ok(cases.iter().zip(&rounds).flat_map(|(case, rounds)| rows(case, modes, rounds, &load)).collect())
}

fn report_progress(
    number: usize,
    config: &SpeculationConfig,
    case: &Case,
    modes: &[Speculate],
    found: &[Round],
) {
    let number = match number.checked_sub(config.warmup) {
        Some(repeat) => format!("{} of {}", repeat + 1, config.repeats),
        None => "warm-up".into(),
    };
    let speeds = modes.iter().zip(found).map(|(mode, round)| format!("{mode} {:.1}", round.speed()));
    let (class, batch) = (&case.class, case.batch);
    let sampling = if case.sampling.temperature > 0.0 { "seeded" } else { "greedy" };
    let speeds = speeds.collect::<Vec<_>>().join(", ");
    say(format_args!("lanner: {number}: {class}, {sampling}, batch {batch}: {speeds} tok/s"));
}
