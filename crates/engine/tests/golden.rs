//! Recorded checkpoints against the logits and tokens transformers gave for them in float32: however the prompt is
//! cut, whoever else is running.
//!
//! The folders in `tests/goldens` come from tools/goldens. LANNER_GOLDENS names a folder of more, with weights.

mod checkpoint;
mod document;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::mpsc,
};

use engine::{Checkpoint, Device, Dtype, Engine, Event, Options, Precision, Request};
use serde::Deserialize;

const LOGIT_BOUND: f32 = 3e-4;
const TIE: f32 = 1e-3;
/// How far logits may be off on average, as a part of their own size, where products round activations: to bfloat16 (a
/// router may then choose another expert), or beside quantised weights to integers of 16 bits.
const ROUNDED: f64 = 0.15;
const ROUNDED_TO_INTEGERS: f64 = 0.003;

#[derive(Deserialize)]
struct Golden {
    #[serde(default)]
    reference: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt_ids: Vec<u32>,
    logit_positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    greedy_ids: Vec<u32>,
    greedy_margin: Vec<f32>,
    #[serde(default)]
    decode_logits: BTreeMap<usize, Vec<f32>>,
}

fn folders() -> Vec<PathBuf> {
    let own = checkpoint::recorded();
    let more = std::env::var_os("LANNER_GOLDENS").map(PathBuf::from);
    let mut folders: Vec<PathBuf> = [Some(own), more]
        .into_iter()
        .flatten()
        .flat_map(|folder| std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("golden.json").is_file())
        .collect();
    folders.sort();
    folders
}

fn holds_weights(folder: &Path) -> bool {
    ["model.safetensors", "model.safetensors.index.json"].iter().any(|file| folder.join(file).exists())
}

fn golden(folder: &Path) -> Golden {
    let text = std::fs::read_to_string(folder.join("golden.json")).expect("golden.json");
    serde_json::from_str(&text).expect("a golden")
}

fn load(folder: &Path, options: Options) -> Result<Engine, String> {
    let options = Options { device: Some(Device::Cpu), dtype: Some(Dtype::Float32), ..options };
    engine::start(Checkpoint::Folder(folder.into()), options, |_| {}).map_err(|e| e.to_string())
}

/// What a request gave: tokens, and logits by position.
#[derive(PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

fn ask(engine: &Engine, case: &Case) -> impl FnOnce() -> Answer {
    let (sender, events) = mpsc::channel();
    let request = Request {
        logits: true,
        ignore_eos: true,
        ..Request::new(case.prompt_ids.clone(), case.greedy_ids.len())
    };
    let ticket = engine.submit(request, move |event| drop(sender.send(event))).expect("a valid request");
    move || {
        let mut answer = Answer { tokens: vec![], logits: vec![] };
        for event in events {
            match event {
                Event::Token { id, .. } => answer.tokens.push(id),
                Event::Logits { position, values } => {
                    assert_eq!(position, answer.logits.len(), "logits come in order, each once");
                    answer.logits.push(values);
                }
                Event::Finished { .. } => break,
                Event::Failed(error) => panic!("{error}"),
                Event::Prompt(_) => unreachable!("nobody asked"),
            }
        }
        drop(ticket);
        answer
    }
}

fn largest_difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

/// Greedy tokens count up to the first near-tie of the reference.
fn decided(case: &Case) -> usize {
    case.greedy_margin.iter().position(|&m| m < TIE).unwrap_or(case.greedy_margin.len())
}

/// The largest difference of a logit; says what is wrong with an answer.
fn check(case: &Case, answer: &Answer) -> Result<f32, String> {
    let decided = decided(case);
    if answer.tokens[..decided] != case.greedy_ids[..decided] {
        return Err("other greedy tokens".into());
    }
    let prompt = case.logit_positions.iter().zip(&case.logits).map(|(&at, logits)| (at, logits));
    let steps = case.decode_logits.iter().filter(|(step, _)| **step <= decided);
    let steps = steps.map(|(step, logits)| (case.prompt_ids.len() - 1 + step, logits));
    let mut worst = 0.0f32;
    for (position, expected) in prompt.chain(steps) {
        let difference = largest_difference(&answer.logits[position], expected);
        if difference > LOGIT_BOUND || difference.is_nan() {
            return Err(format!("logits behind position {position} are off by {difference}"));
        }
        worst = worst.max(difference);
    }
    Ok(worst)
}

fn bits(answer: &Answer) -> Vec<Vec<u32>> {
    answer.logits.iter().map(|l| l.iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn every_golden_in_every_chunking_alone_and_together() {
    let folders = folders();
    assert!(folders.len() >= 80, "the goldens are there");
    let (mut failures, mut rows) = (vec![], BTreeMap::new());
    for folder in folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let checked = std::panic::catch_unwind(|| check_golden(&folder));
        match checked.unwrap_or_else(|panic| Err(format!("{:?}", panic.downcast_ref::<String>()))) {
            Ok(worst) => {
                println!("{name}: logits within {worst:.1e}");
                Row::add(&mut rows, &folder, &name, worst);
            }
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{} goldens fail:\n{}", failures.len(), failures.join("\n"));
    check_document(&rows);
}

/// A family's line in docs/models.md.
#[derive(Default)]
struct Row {
    goldens: Vec<String>,
    references: BTreeSet<String>,
    worst: f32,
}

impl Row {
    /// Counts one golden of ours; those from elsewhere are not in the document.
    fn add(rows: &mut BTreeMap<&'static str, Row>, folder: &Path, name: &str, worst: f32) {
        if folder.parent() != Some(&checkpoint::recorded()) {
            return;
        }
        let config = std::fs::read_to_string(folder.join("config.json")).expect("config.json");
        let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        let of = |(_, types): &(&str, &[&str])| types.iter().any(|&known| config["model_type"] == known);
        let row = rows.entry(engine::families().find(of).expect("a family").0).or_default();
        row.goldens.push(name.into());
        let reference = golden(folder).reference;
        row.references.insert(reference.split(' ').next().unwrap_or_default().into());
        row.worst = row.worst.max(worst);
    }
}

/// Bounds that the document names.
const LADDER: [f32; 6] = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4];

fn check_document(rows: &BTreeMap<&'static str, Row>) {
    let mut text =
        String::from("| family | model_type | checkpoints | against | within |\n|---|---|---|---|---|\n");
    for (family, types) in engine::families() {
        let row = rows.get(family).unwrap_or_else(|| panic!("{family} has no golden"));
        let within = LADDER.iter().find(|&&bound| row.worst <= bound).expect("below the bound");
        let references: Vec<&str> = row.references.iter().map(String::as_str).collect();
        text += &format!(
            "| `{family}` | {} | {} | {} | {within:.0e} |\n",
            types.join(", "),
            row.goldens.join(", "),
            references.join(", ")
        );
    }
    let written = document::part("families", &text);
    // Other processors round a little differently, so the figures may be off by a factor of two or three.
    let columns = |text: &str| {
        text.lines().map(|line| line.rsplitn(3, '|').last().map(str::to_string)).collect::<Vec<_>>()
    };
    assert_eq!(
        columns(&written),
        columns(&text),
        "docs/models.md is stale: run this test with UPDATE_DOCS=1"
    );
    for line in written.lines().skip(2) {
        let column = |i| line.split('|').nth(i).unwrap_or_default().trim();
        let (family, within) = (column(1).trim_matches('`'), column(5).parse::<f32>().expect("a bound"));
        assert!(rows[family].worst <= 3.0 * within, "{family} is not within {within:e} any more");
    }
}

fn check_golden(folder: &Path) -> Result<f32, String> {
    let golden = golden(folder);
    let name = folder.file_name().expect("a name").to_string_lossy();
    let written = (!holds_weights(folder)).then(|| checkpoint::folder(&name));
    let folder = written.as_ref().map_or(folder, |written| written.path());
    let mut worst = 0.0f32;
    let answers = same_in_every_cut(folder, &golden, Precision::Float32, &[4096, 256, 64, 7, 1])?;
    for (case, answer) in golden.cases.iter().zip(&answers) {
        worst = worst.max(check(case, answer)?);
    }
    if name.contains("-mlx-") {
        // Others have no products of integers.
        same_in_every_cut(folder, &golden, Precision::Int8, &[4096, 37, 1])?;
    }
    let answers = same_in_every_cut(folder, &golden, Precision::Rounded, &[4096, 37, 1])?;
    check_rounded(&name, &golden, &answers)?;
    Ok(worst)
}

/// The answers, which are the same whatever the chunks of the prefill, alone and with neighbours.
fn same_in_every_cut(
    folder: &Path,
    golden: &Golden,
    precision: Precision,
    chunks: &[usize],
) -> Result<Vec<Answer>, String> {
    let mut first: Option<Vec<Answer>> = None;
    for &prefill_chunk in chunks {
        let engine = load(folder, Options { prefill_chunk, max_batch: 1, precision, ..Options::default() })?;
        let answers: Vec<Answer> = golden.cases.iter().map(|case| ask(&engine, case)()).collect();
        match &first {
            Some(first) if !same(first, &answers) => {
                return Err(format!("chunks of {prefill_chunk} change bits in {precision:?}"));
            }
            Some(_) => {}
            None => first = Some(answers),
        }
    }
    let options = Options { prefill_chunk: 20, max_batch: 8, precision, ..Options::default() };
    let engine = load(folder, options)?;
    let together: Vec<_> = golden.cases.iter().map(|case| ask(&engine, case)).collect();
    let together: Vec<Answer> = together.into_iter().map(|finish| finish()).collect();
    let first = first.unwrap_or_default();
    match same(&first, &together) {
        true => Ok(first),
        false => Err(format!("neighbours change bits in {precision:?}")),
    }
}

/// Logits of the prompts against the reference, on average: a rounded router may choose another expert here and there.
fn check_rounded(name: &str, golden: &Golden, answers: &[Answer]) -> Result<(), String> {
    let (mut error, mut size) = (0.0f64, 0.0f64);
    for (case, answer) in golden.cases.iter().zip(answers) {
        for (&position, expected) in case.logit_positions.iter().zip(&case.logits) {
            for (got, expected) in answer.logits[position].iter().zip(expected) {
                error += (*got as f64 - *expected as f64).powi(2);
                size += (*expected as f64).powi(2);
            }
        }
    }
    let off = (error / size).sqrt();
    let integers = name.contains("-mlx-") && !name.ends_with("mxfp8");
    match off <= if integers { ROUNDED_TO_INTEGERS } else { ROUNDED } {
        true => Ok(()),
        false => Err(format!("rounded products put logits off by {off:.3} of their size")),
    }
}

/// Bit for bit.
fn same(a: &[Answer], b: &[Answer]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.tokens == b.tokens && bits(a) == bits(b)) && a.len() == b.len()
}
