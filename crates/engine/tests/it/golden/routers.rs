//! Quantised mixtures of experts: rounding is small there, so the default precision must nearly
//! always choose the experts of float32.

use std::{ops::ControlFlow, path::Path};

use lanner_engine::{
    Checkpoint, Options, Precision, Request,
    quantize::{Mode, Plan, SHARD_BYTES, quantization},
};

use crate::support::{
    checkpoint,
    recorded::{Case, ask, golden, options},
};

/// Relative to the logits' size: what rounding moves a token by, and what only another expert does,
/// which later tokens see too.
const ROUNDED: f64 = 0.003;
const MOVED: f64 = 0.01;

/// Without checkpoints whose latent attention keeps bfloat16 matrices.
const MODELS: [&str; 8] = [
    "gemma4_moe-a",
    "glm4_moe-a",
    "gpt_oss-a",
    "kimi_linear-a",
    "lfm2_moe-a",
    "qwen3_5_moe-a",
    "qwen3_moe-a",
    "qwen3_next-a",
];

#[test]
fn router_in_default_precision_nearly_always_chooses_the_experts_of_float32() {
    for name in MODELS {
        let (source, out) = (checkpoint::folder(name), tempfile::tempdir().expect("a folder"));
        let copy = out.path().join("copy");
        let format = quantization(Mode::Affine, Some(4), Some(32)).expect("a format");
        let mut plan = Plan::new(&Checkpoint::Folder(source.path().into()), format).expect("planned");
        plan.write(&copy, SHARD_BYTES, &mut |_| ControlFlow::Continue(())).expect("written");
        let cases = golden(&checkpoint::recorded().join(name)).cases;
        let [exact, rounded] = [Precision::Float32, Options::default().precision]
            .map(|precision| logits(&copy, precision, &cases));
        let square =
            |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|v| f64::from(v).powi(2)).sum::<f64>();
        let mut moved: Vec<f64> = exact
            .iter()
            .zip(&rounded)
            .map(|(exact, rounded)| {
                let difference = square(&mut exact.iter().zip(rounded).map(|(a, b)| a - b));
                (difference / square(&mut exact.iter().copied())).sqrt()
            })
            .collect();
        moved.sort_by(f64::total_cmp);
        let others = moved.iter().filter(|&&moved| moved > MOVED).count();
        let (tokens, middle) = (moved.len(), moved[moved.len() / 2]);
        println!(
            "{name}: {others} of {tokens} tokens moved by more than {MOVED}, half of all by {middle:.5} at most"
        );
        assert!(middle < ROUNDED, "{name}: half of all tokens moved by up to {middle:.5}");
        assert!(others * 3 < tokens, "{name}: {others} of {tokens} tokens moved by more than {MOVED}");
    }
}

/// For every token of the prompts.
fn logits(folder: &Path, precision: Precision, cases: &[Case]) -> Vec<Vec<f32>> {
    let with = options(Options { precision, ..Options::default() });
    let engine = lanner_engine::start(Checkpoint::Folder(folder.into()), with, |_| {}).expect("loads");
    let of = |case: &Case| Request { logits: true, ..Request::new(case.prompt_ids.clone(), 1) };
    cases.iter().flat_map(|case| ask(&engine, of(case))().logits).collect()
}
