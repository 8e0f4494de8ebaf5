//! Quantised mixtures of experts: rounding is small there, so the default precision must choose the
//! experts of float32.

use std::{ops::ControlFlow, path::Path};

use lanner_engine::{
    Checkpoint, Options, Precision, Request,
    quantize::{Mode, Plan, SHARD_BYTES, quantization},
};

use crate::support::{
    checkpoint,
    recorded::{Case, ask, golden, options},
};

/// Relative to the logits' size.
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
fn router_in_default_precision_chooses_the_experts_of_float32() {
    for name in MODELS {
        let (source, out) = (checkpoint::folder(name), tempfile::tempdir().expect("a folder"));
        let copy = out.path().join("copy");
        let format = quantization(Mode::Affine, Some(4), Some(32)).expect("a format");
        let mut plan = Plan::new(&Checkpoint::Folder(source.path().into()), format).expect("planned");
        plan.write(&copy, SHARD_BYTES, &mut |_| ControlFlow::Continue(())).expect("written");
        let cases = golden(&checkpoint::recorded().join(name)).cases;
        let [exact, rounded] = [Precision::Float32, Options::default().precision]
            .map(|precision| logits(&copy, precision, &cases));
        let square = |pairs: &mut dyn Iterator<Item = f32>| pairs.map(|v| f64::from(v).powi(2)).sum::<f64>();
        let moved = square(&mut exact.iter().zip(&rounded).map(|(a, b)| a - b));
        let moved = (moved / square(&mut exact.iter().copied())).sqrt();
        println!("{name}: logits moved by {moved:.5} of their size");
        assert!(moved < MOVED, "{name}: logits moved by {moved:.4} of their size");
    }
}

/// For every token of the prompts.
fn logits(folder: &Path, precision: Precision, cases: &[Case]) -> Vec<f32> {
    let with = options(Options { precision, ..Options::default() });
    let engine = lanner_engine::start(Checkpoint::Folder(folder.into()), with, |_| {}).expect("loads");
    let of = |case: &Case| Request { logits: true, ..Request::new(case.prompt_ids.clone(), 1) };
    cases.iter().flat_map(|case| ask(&engine, of(case))().logits).flatten().collect()
}
