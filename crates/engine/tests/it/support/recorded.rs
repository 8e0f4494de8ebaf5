//! Recorded prompts with the reference's results, and the engine's results for them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::mpsc,
};

use lanner_engine::{
    Checkpoint, Device, Dtype, Engine, Event, Options, Precision, Request, Speculate, Usage,
};
use serde::Deserialize;

use super::{checkpoint, skipped::skipped};

const TIE: f32 = 1e-3;

#[derive(Deserialize)]
pub(crate) struct Golden {
    #[serde(default)]
    pub reference: String,
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub prompt_ids: Vec<u32>,
    logit_positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    pub greedy_ids: Vec<u32>,
    pub greedy_margin: Vec<f32>,
    #[serde(default)]
    decode_logits: BTreeMap<usize, Vec<f32>>,
}

impl Case {
    /// The request to the engine.
    pub(crate) fn request(&self) -> Request {
        Request {
            logits: true,
            ignore_eos: true,
            ..Request::new(self.prompt_ids.clone(), self.greedy_ids.len())
        }
    }

    /// The reference's logits by position, those of generated tokens only up to step `last`.
    pub(crate) fn expected(&self, last: usize) -> impl Iterator<Item = (usize, &[f32])> {
        let prompt = self.logit_positions.iter().copied().zip(self.logits.iter().map(Vec::as_slice));
        let steps = self.decode_logits.iter().filter(move |(step, _)| **step <= last);
        prompt.chain(steps.map(|(step, logits)| (self.prompt_ids.len() - 1 + step, logits.as_slice())))
    }

    /// Greedy tokens count up to the first near-tie of the reference.
    fn decided(&self) -> usize {
        self.greedy_margin.iter().position(|&m| m < TIE).unwrap_or(self.greedy_margin.len())
    }
}

/// The result of a request: tokens, and logits by position.
pub(crate) struct Answer {
    pub tokens: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
    pub usage: Usage,
}

impl Answer {
    /// Bit for bit.
    pub(crate) fn equals(&self, other: &Answer) -> bool {
        let bits = |answer: &Answer| -> Vec<Vec<u32>> {
            answer.logits.iter().map(|l| l.iter().map(|v| v.to_bits()).collect()).collect()
        };
        self.tokens == other.tokens && bits(self) == bits(other)
    }
}

/// Folders of our goldens and of LANNER_GOLDENS, with long prompts or without.
pub(crate) fn folders(long: bool) -> Vec<PathBuf> {
    let more = std::env::var_os("LANNER_GOLDENS").map(PathBuf::from);
    if more.is_none() {
        skipped("checkpoints from elsewhere: LANNER_GOLDENS is not set");
    }
    let mut folders: Vec<PathBuf> = [Some(checkpoint::recorded()), more]
        .into_iter()
        .flatten()
        .flat_map(|folder| std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("golden.json").is_file() && name(path).ends_with("-long") == long)
        .collect();
    folders.sort();
    folders
}

pub(crate) fn name(folder: &Path) -> String {
    folder.file_name().expect("a name").to_string_lossy().into_owned()
}

pub(crate) fn holds_weights(folder: &Path) -> bool {
    ["model.safetensors", "model.safetensors.index.json"].iter().any(|file| folder.join(file).exists())
}

pub(crate) fn golden(folder: &Path) -> Golden {
    let text = std::fs::read_to_string(folder.join("golden.json")).expect("golden.json");
    serde_json::from_str(&text).expect("a golden")
}

/// Runs `check` on each folder, and reports all failures and panics at the end.
pub(crate) fn check_each(folders: &[PathBuf], mut check: impl FnMut(&Path) -> Result<String, String>) {
    let mut failures = vec![];
    for folder in folders {
        let name = name(folder);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(folder)));
        match checked.unwrap_or_else(|panic| Err(format!("{:?}", panic.downcast_ref::<String>()))) {
            Ok(line) => println!("{name}: {line}"),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{} goldens fail:\n{}", failures.len(), failures.join("\n"));
}

pub(crate) fn options(options: Options) -> Options {
    let gpu = std::env::var_os("LANNER_GPU").is_some();
    let device = if gpu { Device::Gpu } else { Device::Cpu };
    Options { device: Some(device), dtype: Some(Dtype::Float32), ..options }
}

fn load(folder: &Path, with: Options) -> Result<Engine, String> {
    lanner_engine::start(Checkpoint::Folder(folder.into()), options(with), |_| {}).map_err(|e| e.to_string())
}

pub(crate) fn ask(engine: &Engine, request: Request) -> impl FnOnce() -> Answer {
    let (sender, events) = mpsc::channel();
    let handle = engine.submit(request, move |event| drop(sender.send(event))).expect("a valid request");
    move || {
        let (mut tokens, mut logits) = (vec![], vec![]);
        for event in events {
            match event {
                Event::Token { id, .. } => tokens.push(id),
                Event::Logits { position, values } => {
                    assert_eq!(position, logits.len(), "logits come in order, each once");
                    logits.push(values);
                }
                Event::Finished { usage, .. } => {
                    drop(handle);
                    return Answer { tokens, logits, usage };
                }
                Event::Failed(error) => panic!("{error}"),
                Event::Prompt(_) | Event::PromptProgress { .. } | Event::Embedding(_) => {
                    unreachable!("not requested")
                }
            }
        }
        panic!("no end");
    }
}

pub(crate) fn largest_difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

/// The largest difference of a logit of a float32 answer. Fails if it exceeds `bound`, or if greedy
/// tokens differ.
pub(crate) fn check(case: &Case, answer: &Answer, bound: f32) -> Result<f32, String> {
    let decided = case.decided();
    if answer.tokens[..decided] != case.greedy_ids[..decided] {
        return Err("other greedy tokens".into());
    }
    let mut worst = 0.0f32;
    for (position, expected) in case.expected(decided) {
        let difference = largest_difference(&answer.logits[position], expected);
        if difference > bound || difference.is_nan() {
            return Err(format!("logits after position {position} are off by {difference}"));
        }
        worst = worst.max(difference);
    }
    Ok(worst)
}

/// Root mean square error of the prompts' logits, relative to their size.
pub(crate) fn relative_error(golden: &Golden, answers: &[Answer]) -> f64 {
    let (mut error, mut size) = (0.0f64, 0.0f64);
    for (case, answer) in golden.cases.iter().zip(answers) {
        for (position, expected) in case.expected(0) {
            for (got, expected) in answer.logits[position].iter().zip(expected) {
                error += (*got as f64 - *expected as f64).powi(2);
                size += (*expected as f64).powi(2);
            }
        }
    }
    (error / size).sqrt()
}

/// The answers, after checking that prefill chunks and batch neighbours do not change a bit.
pub(crate) fn same_in_every_cut(
    folder: &Path,
    golden: &Golden,
    precision: Precision,
    chunks: &[usize],
    together: usize,
) -> Result<Vec<Answer>, String> {
    let with = |prefill_chunk, max_batch| {
        let speculate = Speculate::Off;
        load(folder, Options { prefill_chunk, max_batch, precision, speculate, ..Options::default() })
    };
    let mut first: Option<Vec<Answer>> = None;
    for &prefill_chunk in chunks {
        let engine = with(prefill_chunk, 1)?;
        let answers: Vec<Answer> = golden.cases.iter().map(|case| ask(&engine, case.request())()).collect();
        match &first {
            Some(first) if !same(first, &answers) => {
                return Err(format!("chunks of {prefill_chunk} change bits in {precision:?}"));
            }
            Some(_) => {}
            None => first = Some(answers),
        }
    }
    let engine = with(together, 8)?;
    let together: Vec<_> = golden.cases.iter().map(|case| ask(&engine, case.request())).collect();
    let together: Vec<Answer> = together.into_iter().map(|finish| finish()).collect();
    let first = first.unwrap_or_default();
    match same(&first, &together) {
        true => Ok(first),
        false => Err(format!("neighbours change bits in {precision:?}")),
    }
}

pub(crate) fn same(a: &[Answer], b: &[Answer]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
}
