//! Peak memory of loading. A binary of its own: the peak is that of the process.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

#[expect(dead_code, reason = "this test writes a manifest of its own")]
#[path = "it/support/checkpoint.rs"]
mod checkpoint;

use lanner_engine::{Checkpoint, Device, Options, Speculate, start};
use serde_json::{Map, Value, json};

const LAYERS: usize = 12;
const HIDDEN: usize = 256;
const EXPERTS: usize = 8;
const EXPERT_SIZE: usize = 512;
const VOCAB: usize = 1024;

/// A checkpoint with one fused expert tensor per layer, which is split in two.
fn manifest() -> Value {
    let mut tensors = Map::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, json!({"dtype": "BF16", "shape": shape, "mean": 0.5, "spread": 0.1}));
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN]);
    add("model.norm.weight".into(), &[HIDDEN]);
    for layer in 0..LAYERS {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}");
        for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
            add(name(norm), &[HIDDEN]);
        }
        for projection in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(name(&format!("self_attn.{projection}.weight")), &[HIDDEN, HIDDEN]);
        }
        for norm in ["q_norm", "k_norm"] {
            add(name(&format!("self_attn.{norm}.weight")), &[64]);
        }
        add(name("mlp.gate.weight"), &[EXPERTS, HIDDEN]);
        add(name("mlp.experts.gate_up_proj"), &[EXPERTS, 2 * EXPERT_SIZE, HIDDEN]);
        add(name("mlp.experts.down_proj"), &[EXPERTS, HIDDEN, EXPERT_SIZE]);
    }
    json!({"seed": 1, "shards": 2, "tensors": tensors})
}

fn config() -> Value {
    json!({
        "model_type": "qwen3_moe", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 1,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "max_position_embeddings": 1024,
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_SIZE,
    })
}

#[test]
fn loading_peak_is_at_most_a_tenth_above_the_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    checkpoint::write(&manifest(), folder.path());
    std::fs::write(folder.path().join("config.json"), config().to_string()).expect("written");
    // Without the measured steps of speculation.
    let options = Options { device: Some(Device::Cpu), speculate: Speculate::Off, ..Options::default() };
    let engine = start(Checkpoint::Folder(folder.path().into()), options, |_| {}).expect("loads");
    let (weights, peak) = (engine.info().weight_bytes, mlx::peak_memory());
    assert!(weights > 75_000_000, "{weights} bytes are enough to measure");
    assert!(peak as f64 <= 1.1 * weights as f64, "a peak of {peak} bytes for weights of {weights}");
}
