//! Block drafters (DFlash): answers equal those of plain decoding to the bit.

use std::fs;

use lanner_engine::*;
use serde_json::{Value, json};

use crate::support::{checkpoint, drafting};

/// Recorded drafters, by target model.
const MODELS: [&str; 2] = ["qwen3-a", "qwen3_5-text-sharded"];

fn start_with(golden: &str, draft: Option<&std::path::Path>) -> Result<Engine, LoadError> {
    let folder = checkpoint::folder(golden);
    let options = Options {
        device: Some(Device::Cpu),
        prefill_chunk: 64,
        draft_model: draft.map(|folder| Checkpoint::Folder(folder.into())),
        ..Options::default()
    };
    start(Checkpoint::Folder(folder.path().into()), options, |_| {})
}

fn with_block(golden: &str) -> Engine {
    let draft = checkpoint::folder(&format!("../blocks/{golden}"));
    start_with(golden, Some(draft.path())).expect("loads")
}

fn fixed(depth: usize) -> Option<Speculate> {
    Some(Speculate::Fixed { drafter: "block".into(), depth: Some(depth) })
}

/// Greedy, sampled and penalised, alone and eight together, with prompts that resume from others'
/// state, and some that are cancelled in between.
#[test]
fn answers_with_a_block_drafter_equal_plain_decoding() {
    for (i, golden) in MODELS.into_iter().enumerate() {
        let (plain, engine) = (start_with(golden, None).expect("loads"), with_block(golden));
        assert!(engine.info().drafters.contains(&"block"));
        let (rounds, modes) = (
            (0..20).map(|round| [1, 8, 3][round % 3]),
            [fixed(1), fixed(3), fixed(9), Some(Speculate::Auto)],
        );
        let drafted = drafting::check(golden, [&plain, &engine], i as u64, rounds, &modes, 5);
        assert!(drafted > 200, "{golden}: {drafted}");
    }
}

#[test]
fn memory_plan_counts_the_block_drafter() {
    for golden in MODELS {
        let (one, two) = (start_with(golden, None).expect("loads"), with_block(golden));
        let (one, two) = (&one.info().memory, &two.info().memory);
        assert!(two.weights > one.weights, "{golden}: its weights");
        assert!(two.state(1000) > one.state(1000) && two.step > one.step, "{golden}: its state");
    }
}

/// The error of a drafter whose config.json has other values.
fn rejection(golden: &str, changes: Value) -> String {
    let draft = checkpoint::folder("../blocks/qwen3-a");
    let path = draft.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).expect("a file")).expect("JSON");
    for (key, value) in changes.as_object().expect("keys") {
        match config["dflash_config"].get(key) {
            Some(_) => config["dflash_config"][key] = value.clone(),
            None => config[key] = value.clone(),
        }
    }
    fs::write(path, config.to_string()).expect("written");
    start_with(golden, Some(draft.path())).err().unwrap_or_else(|| panic!("{changes} passes")).to_string()
}

#[test]
fn block_drafter_that_does_not_fit_is_rejected() {
    let check = |golden, changes, expected: &str| {
        assert_eq!(rejection(golden, changes), format!("the draft model: config.json: {expected}"));
    };
    check("qwen3-a", json!({ "hidden_size": 32 }), "hidden_size is 32, the model's is 64");
    check("qwen3-a", json!({ "vocab_size": 300 }), "vocab_size is 300, the model's is 256");
    check("qwen3-a", json!({ "num_target_layers": 36 }), "num_target_layers is 36, the model has 3");
    check(
        "qwen3-a",
        json!({ "target_layer_ids": [1, 3] }),
        "target_layer_ids are [1, 3], the model has 3 layers",
    );
    check("qwen3-a", json!({ "target_layer_ids": [] }), "target_layer_ids is empty");
    check("qwen3-a", json!({ "mask_token_id": 256 }), "mask_token_id is 256, the model has 256 tokens");
    check("qwen3-a", json!({ "block_size": 1 }), "block_size is 1; it must be between 2 and 33");
    check("qwen3-a", json!({ "output_multiplier": 0.2 }), "output_multiplier is not supported");
    check(
        "qwen3-a",
        json!({ "architectures": ["DFlash2DraftModel"] }),
        "architecture `DFlash2DraftModel` is not supported, only `DFlashDraftModel`",
    );
    check(
        "qwen3-a",
        json!({ "layer_types": ["full_attention", "sliding_attention"] }),
        "there is no sliding_window for its sliding layers",
    );
    check(
        "qwen3-a",
        json!({ "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9, "is_causal": false }),
        "bidirectional sliding-window layers are not supported",
    );
    check("gemma4_e-a", json!({}), "models of this family do not give their hidden states to block drafters");
    let error = rejection("qwen3-a", json!({ "num_hidden_layers": 3, "layer_types": null }));
    assert!(error.contains("the checkpoint has no tensor layers.2."), "{error}");
    let error = rejection("qwen3-a", json!({ "num_hidden_layers": 1, "layer_types": null }));
    assert!(error.contains("layers.1."), "{error}");
}
