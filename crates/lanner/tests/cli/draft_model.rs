//! `--draft-model`: unchanged answers, and refused models.

use std::fs;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::{
    checkpoint,
    process::lanner,
    server::{TEMPLATE, tokenizer_json},
};

/// stdout, stderr, and whether it succeeded.
fn run_lanner(args: &[&str]) -> (String, String, bool) {
    let output = lanner(args, &[]);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.success())
}

const RUN: [&str; 6] = ["run", "Once upon a time", "--max-tokens", "12", "--temperature", "0"];

#[test]
fn draft_model_changes_no_answer() {
    let (plain, ..) = run_lanner(&[&RUN[..], &["--speculate", "off"]].concat());
    for speculate in ["draft_model:3", "draft_model", "auto"] {
        let drafting = ["--draft-model", "merlin", "--speculate", speculate];
        let (answer, stderr, succeeded) = run_lanner(&[&RUN[..], &drafting].concat());
        assert!(succeeded, "{stderr}");
        assert_eq!(answer, plain, "{speculate}");
    }
}

#[test]
fn draft_model_with_another_tokenizer_is_refused() {
    let other = checkpoint::folder("qwen3_5-hub");
    fs::write(other.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    fs::write(other.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let other = other.path().to_str().unwrap();
    for args in [&["run", "Hi"] as &[&str], &["serve", "--port", "0"], &["bench"]] {
        let (_, stderr, succeeded) = run_lanner(&[args, &["--draft-model", other]].concat());
        assert!(
            !succeeded && stderr.contains("cannot draft for merlin: their tokenizers differ: token"),
            "{stderr}"
        );
        // A server says its memory mode before it loads.
        let said = stderr.lines().filter(|line| !line.starts_with("lanner: memory mode")).count();
        assert_eq!(said, 1, "{stderr}");
    }
    let (_, stderr, succeeded) = run_lanner(&["run", "Hi", "--draft-model", "no-such-model"]);
    assert!(!succeeded && stderr.contains("the draft model: there is no model `no-such-model`"), "{stderr}");
    let empty = tempfile::tempdir().unwrap();
    let (_, stderr, succeeded) = run_lanner(&["run", "Hi", "--draft-model", empty.path().to_str().unwrap()]);
    assert!(
        !succeeded && stderr.contains("the draft model: cannot read") && stderr.contains("tokenizer.json"),
        "{stderr}"
    );
    let (_, stderr, succeeded) = run_lanner(&[&RUN[..], &["--speculate", "draft_model"]].concat());
    assert!(!succeeded && stderr.contains("there is no drafter `draft_model`"), "{stderr}");
}

/// A block drafter with random weights for merlin's shape; `changes` override its config.
fn block(changes: Value) -> TempDir {
    let (hidden, inner, heads) = (448, 64, 32);
    let matrix = |rows: usize, columns: usize| json!({ "dtype": "BF16", "shape": [rows, columns], "mean": 0, "spread": 0.1 });
    let norm = |size: usize| json!({ "dtype": "BF16", "shape": [size], "mean": 1, "spread": 0.1 });
    let tensors: Map<String, Value> = [
        ("fc", matrix(hidden, 2 * hidden)),
        ("hidden_norm", norm(hidden)),
        ("norm", norm(hidden)),
        ("layers.0.input_layernorm", norm(hidden)),
        ("layers.0.post_attention_layernorm", norm(hidden)),
        ("layers.0.self_attn.q_proj", matrix(2 * heads, hidden)),
        ("layers.0.self_attn.k_proj", matrix(heads, hidden)),
        ("layers.0.self_attn.v_proj", matrix(heads, hidden)),
        ("layers.0.self_attn.o_proj", matrix(hidden, 2 * heads)),
        ("layers.0.self_attn.q_norm", norm(heads)),
        ("layers.0.self_attn.k_norm", norm(heads)),
        ("layers.0.mlp.gate_proj", matrix(inner, hidden)),
        ("layers.0.mlp.up_proj", matrix(inner, hidden)),
        ("layers.0.mlp.down_proj", matrix(hidden, inner)),
    ]
    .into_iter()
    .map(|(name, spec)| (format!("{name}.weight"), spec))
    .collect();
    let mut config = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 4, "vocab_size": 8192,
        "dflash_config": { "mask_token_id": 8185, "target_layer_ids": [2, 9] }, "num_target_layers": 12,
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": heads, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    checkpoint::write(&json!({ "seed": 3, "tensors": tensors }), folder.path());
    folder
}

/// The drafter's folder has no tokenizer: it uses the model's tokens.
#[test]
fn block_drafter_changes_no_answer() {
    let drafter = block(json!({}));
    let path = drafter.path().to_str().unwrap();
    let (plain, ..) = run_lanner(&[&RUN[..], &["--speculate", "off"]].concat());
    for speculate in ["block:3", "block", "auto"] {
        let drafting = ["--draft-model", path, "--speculate", speculate];
        let (answer, stderr, succeeded) = run_lanner(&[&RUN[..], &drafting].concat());
        assert!(succeeded, "{stderr}");
        assert_eq!(answer, plain, "{speculate}");
    }
    let other = block(json!({ "num_target_layers": 36 }));
    let (_, stderr, succeeded) = run_lanner(&["run", "Hi", "--draft-model", other.path().to_str().unwrap()]);
    let expected = "the draft model: config.json: num_target_layers is 36, the model has 12";
    assert!(!succeeded && stderr.contains(expected), "{stderr}");
}
