//! Memory of a model by its headers, beside the memory measured when it is loaded.

use std::ops::ControlFlow;

use lanner_engine::{
    quantize::{Mode, Plan, SHARD_BYTES, quantization},
    *,
};

use crate::support::checkpoint;

/// Every kind of cache, tied and separate heads, experts, shards, and stored formats.
const GOLDENS: [&str; 14] = [
    "llama-a",
    "qwen3-a",
    "qwen3-mlx-mixed",
    "qwen3_moe-a",
    "qwen3_5-hub",
    "qwen3_5-text-sharded",
    "gemma3_text-a",
    "gemma4_e-a",
    "lfm2-a",
    "deepseek_v3-a",
    "kimi_linear-a",
    "gpt_oss_mxfp4-a",
    "llama-mlx-nvfp4",
    "qwen3_5_moe-mlx-nvfp4",
];

fn options() -> Options {
    Options { device: Some(Device::Cpu), ..Options::default() }
}

/// Compares the footprint with the properties of the loaded model.
fn check(name: &str, checkpoint: &Checkpoint, footprint: &Footprint, options: &Options) {
    let engine = start(checkpoint.clone(), options.clone(), |_| {}).unwrap_or_else(|e| panic!("{name}: {e}"));
    let info = engine.info();
    assert_eq!(footprint.memory, info.memory, "{name}");
    assert_eq!(footprint.context_length, info.context_length, "{name}");
    assert_eq!(format!("{:?}", footprint.weights), format!("{:?}", info.weights), "{name}");
    assert!(footprint.layers > 0 && footprint.memory.token + footprint.memory.sequence > 0, "{name}");
    engine.stop();
}

fn footprint(checkpoint: &Checkpoint, options: &Options) -> Footprint {
    Footprint::of(&Headers::Checkpoint(checkpoint.clone()), options, None).unwrap()
}

#[test]
fn footprint_equals_what_loading_measures() {
    for name in GOLDENS {
        let folder = checkpoint::folder(name);
        let checkpoint = Checkpoint::Folder(folder.path().into());
        check(name, &checkpoint, &footprint(&checkpoint, &options()), &options());
    }
    let merlin = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/merlin");
    let merlin = Checkpoint::Folder(merlin.into());
    check("merlin", &merlin, &footprint(&merlin, &options()), &options());
    let small = Options {
        kv_cache_dtype: Some(Dtype::Bfloat16),
        prefill_chunk: 64,
        max_batch: 2,
        max_context: Some(1000),
        ..options()
    };
    check("merlin", &merlin, &footprint(&merlin, &small), &small);
}

#[test]
fn footprint_of_a_format_equals_that_of_the_quantised_copy() {
    for (name, bits) in [("qwen3-a", 4), ("qwen3_5-hub", 6), ("deepseek_v3-a", 8), ("gemma4_moe-a", 4)] {
        let (folder, out) = (checkpoint::folder(name), tempfile::tempdir().unwrap());
        let source = Checkpoint::Folder(folder.path().into());
        let format = quantization(Mode::Affine, Some(bits), Some(32)).unwrap();
        let copy = out.path().join("copy");
        let mut go_on = |_: Progress| ControlFlow::Continue(());
        Plan::new(&source, format).unwrap().write(&copy, SHARD_BYTES, &mut go_on).unwrap();
        let found = Footprint::of(&Headers::Checkpoint(source), &options(), Some(format)).unwrap();
        check(name, &Checkpoint::Folder(copy), &found, &options());
    }
}

#[test]
fn footprint_of_faulty_headers_is_one_sentence() {
    let wrong = |config, tensors: Vec<TensorHeader>| {
        let headers = Headers::Recorded { config, tensors };
        Footprint::of(&headers, &options(), None).unwrap_err().to_string()
    };
    let config = serde_json::json!({ "model_type": "qwen9" });
    assert!(wrong(config, vec![]).contains("qwen9"));
    let folder = checkpoint::folder("qwen3-a");
    let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(wrong(config.clone(), vec![]).contains("has no tensor"), "none is there");
    let tensor =
        |dtype: &str, shape| TensorHeader { name: "model.norm.weight".into(), dtype: dtype.into(), shape };
    assert!(wrong(config.clone(), vec![tensor("F8_E4M3", vec![4])]).contains("F8_E4M3"));
    assert!(wrong(config, vec![tensor("F32", vec![1 << 40])]).contains("2^31"));
}
