//! Prompts of 600 to 2,000 tokens: over the edges of attention's blocks, through windows that slide
//! while drafts are in flight, far beyond the length that RoPE was trained for.

use std::path::Path;

use lanner_engine::{Checkpoint, Options, Precision, Request, Script, Speculate, start_scripted};

use super::ROUNDED;
use crate::support::{
    checkpoint,
    recorded::{
        self, Answer, Case, Golden, ask, check, check_each, folders, golden, holds_weights,
        largest_difference, options, relative_error, same_in_every_cut,
    },
};

/// One chunk, and chunks that do not start at a key block.
const CHUNKS: [usize; 2] = [4096, 193];
const TOGETHER: usize = 300;
/// Larger than for short prompts: sums are longer.
const LOGIT_BOUND: f32 = 6e-4;
const DEPTH: usize = 4;
/// A token is compared if the reference's top two logits are this many times further apart than the
/// largest rounding error of a recorded logit.
const CLEAR: f32 = 3.0;
/// Minimum number of compared tokens per golden.
const COMPARED: usize = 8;
/// One in this many of all tokens may differ, whatever their margins.
const DIFFER: usize = 6;
/// One in this many compared tokens may differ in a mixture of experts: rounded router inputs can
/// break a tie differently.
const EXPERTS_DIFFER: usize = 10;

#[test]
fn long_prompt_in_float32_has_the_reference_logits_in_every_chunking() {
    let folders = folders(true);
    assert!(folders.len() >= 18, "the goldens are there");
    check_each(&folders, |folder| {
        with_weights(folder, |folder, golden| {
            let answers = same_in_every_cut(folder, golden, Precision::Float32, &CHUNKS, TOGETHER)?;
            let mut worst = 0.0f32;
            for (case, answer) in golden.cases.iter().zip(&answers) {
                worst = worst.max(check(case, answer, LOGIT_BOUND)?);
            }
            Ok(format!("logits within {worst:.1e}"))
        })
    });
}

/// The default precision, with drafts.
#[test]
fn long_prompt_in_default_precision_has_the_reference_tokens_above_its_margin() {
    check_each(&folders(true), |folder| {
        with_weights(folder, |folder, golden| {
            let precision = Options::default().precision;
            let answers = same_in_every_cut(folder, golden, precision, &[4096], TOGETHER)?;
            let off = relative_error(golden, &answers);
            if off > ROUNDED {
                return Err(format!("logits are off by {off:.4} of their size"));
            }
            let (drafted, accepted) = drafts_change_nothing(folder, golden, &answers)?;
            let Tokens { compared, agreeing, all } = tokens_where_clear(folder, golden, &answers)?;
            Ok(format!(
                "off by {off:.4}, {compared} of {all} tokens clear, {agreeing} equal, {accepted} of {drafted} drafts"
            ))
        })
    });
}

fn with_weights(
    folder: &Path,
    f: impl FnOnce(&Path, &Golden) -> Result<String, String>,
) -> Result<String, String> {
    let golden = golden(folder);
    let written = (!holds_weights(folder)).then(|| checkpoint::folder(&recorded::name(folder)));
    f(written.as_ref().map_or(folder, |written| written.path()), &golden)
}

/// Partly wrong drafts change no bit, also when buffers are rewound across the edge of a sliding
/// window.
fn drafts_change_nothing(
    folder: &Path,
    golden: &Golden,
    answers: &[Answer],
) -> Result<(usize, usize), String> {
    let known = golden.cases.iter().zip(answers);
    let known = known.map(|(case, answer)| (case.prompt_ids.clone(), answer.tokens.clone()));
    let script = Script { answers: known.collect(), acceptance_rate: 0.6, vocab_size: 250, seed: 1 };
    let speculate = Speculate::Fixed { drafter: "scripted".into(), depth: Some(DEPTH) };
    let with = options(Options { speculate, ..Options::default() });
    let engine =
        start_scripted(Checkpoint::Folder(folder.into()), with, script, |_| {}).map_err(|e| e.to_string())?;
    let (mut drafted, mut accepted) = (0, 0);
    for (case, answer) in golden.cases.iter().zip(answers) {
        let got = ask(&engine, case.request())();
        if !got.equals(answer) {
            return Err(format!("drafts change bits after {} tokens", case.prompt_ids.len()));
        }
        drafted += got.usage.speculation.iter().map(|by| by.drafted).sum::<usize>();
        accepted += got.usage.speculation.iter().map(|by| by.accepted).sum::<usize>();
    }
    match 0 < accepted && accepted < drafted {
        true => Ok((drafted, accepted)),
        false => Err(format!("{accepted} of {drafted} drafts were right")),
    }
}

/// The reference's tokens.
struct Tokens {
    /// Those with a clear margin.
    compared: usize,
    /// Those that are the likeliest here too, whatever the margin.
    agreeing: usize,
    all: usize,
}

/// Compares the top token after each of the reference's tokens.
fn tokens_where_clear(folder: &Path, golden: &Golden, answers: &[Answer]) -> Result<Tokens, String> {
    let engine = lanner_engine::start(Checkpoint::Folder(folder.into()), options(Options::default()), |_| {})
        .map_err(|e| e.to_string())?;
    let (mut compared, mut agreeing, mut all, mut different) = (0, 0, 0, vec![]);
    for (case, answer) in golden.cases.iter().zip(answers) {
        let given = case.greedy_ids.len() - 1;
        let prompt = [&case.prompt_ids[..], &case.greedy_ids[..given]].concat();
        let got = ask(&engine, Request { logits: true, ignore_eos: true, ..Request::new(prompt, 1) })();
        let moved = moved(case, answer, &got);
        for (step, (&expected, &margin)) in case.greedy_ids.iter().zip(&case.greedy_margin).enumerate() {
            let logits = &got.logits[case.prompt_ids.len() - 1 + step];
            let likeliest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            let agrees = likeliest == Some(expected as usize);
            (all, agreeing) = (all + 1, agreeing + usize::from(agrees));
            if margin > CLEAR * moved {
                compared += 1;
                if !agrees {
                    different.push((step, margin));
                }
            }
        }
    }
    let sparse = has_experts(folder);
    if different.len() > if sparse { compared / EXPERTS_DIFFER } else { 0 } {
        return Err(format!("of {compared} tokens others at steps (margins) {different:?}"));
    }
    // Another choice of experts can move logits so far that no margin is clear.
    if all - agreeing > all / DIFFER {
        return Err(format!("only {agreeing} of {all} tokens are the reference's"));
    }
    match sparse || compared >= COMPARED {
        true => Ok(Tokens { compared, agreeing, all }),
        false => Err(format!("rounding leaves only {compared} of {all} tokens clear")),
    }
}

fn has_experts(folder: &Path) -> bool {
    let text = std::fs::read_to_string(folder.join("config.json")).expect("config.json");
    let config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let keys = ["num_experts", "n_routed_experts", "num_local_experts"];
    keys.iter().any(|key| config[key].is_number())
}

/// The largest rounding error of the recorded logits.
fn moved(case: &Case, answer: &Answer, given: &Answer) -> f32 {
    let decoded = case.expected(usize::MAX).map(|(position, expected)| {
        let logits = if position < case.prompt_ids.len() { answer } else { given };
        largest_difference(&logits.logits[position], expected)
    });
    decoded.fold(0.0, f32::max)
}
