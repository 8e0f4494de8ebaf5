//! Time of the vision tower of Qwen3.5 0.8B on a picture of 1,024 tokens, with random weights and a
//! text model of one layer: `cargo bench -p lanner-engine --bench time_tower -- [ROUNDS]`.

use std::{error::Error, sync::Arc, sync::mpsc, time::Instant};

use half::bf16;
use lanner_engine::*;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;

const SIDE: usize = 64;
const TOKENS: usize = SIDE * SIDE / 4;
const IMAGE_TOKEN: u32 = 299;

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo adds an argument of its own.
    let rounds = std::env::args().skip(1).find(|argument| argument != "--bench");
    let rounds: u8 = rounds.map_or(Ok(5), |rounds| rounds.parse())?;
    let folder = tempfile::tempdir()?;
    write_checkpoint(folder.path())?;
    let options = Options { prefix_cache_bytes: 0, speculate: Speculate::Off, ..Options::default() };
    let engine = start(Checkpoint::Folder(folder.path().into()), options, |_| {})?;
    let values: Vec<f32> = (0..SIDE * SIDE * 1536).map(|i| ((i * 37) % 255) as f32 / 127.5 - 1.0).collect();
    let tensors: Arc<[ImageTensor]> = Arc::from([ImageTensor { rows: SIDE, columns: SIDE, values }]);
    let mut prompt = vec![5; TOKENS + 4];
    prompt[2..TOKENS + 2].fill(IMAGE_TOKEN);
    let time = |digest: u8| -> Result<f64, Box<dyn Error>> {
        let (digest, tensors) = ([digest; 32], tensors.clone());
        let image = Image { positions: std::iter::once(2..TOKENS + 2).collect(), digest, tensors };
        let request = Request { images: vec![image], ..Request::new(prompt.clone(), 1) };
        let (sender, events) = mpsc::channel();
        let started = Instant::now();
        let _handle = engine.submit(request, move |event| drop(sender.send(event)))?;
        match events.iter().last() {
            Some(Event::Finished { .. }) => Ok(started.elapsed().as_secs_f64()),
            other => Err(format!("{other:?}").into()),
        }
    };
    time(255)?;
    let mut towers = vec![];
    for round in 0..rounds {
        let (whole, text) = (time(round)?, time(round)?);
        println!("with the tower {whole:.3} s, with kept features {text:.3} s");
        towers.push(whole - text);
    }
    towers.sort_by(f64::total_cmp);
    println!("tower, median of {rounds}: {:.3} s on {} threads", towers[towers.len() / 2], threads());
    Ok(())
}

/// Sizes of the tower, of the inner layers of its blocks, and of the text model.
const HIDDEN: usize = 768;
const INNER: usize = 3072;
const TEXT: usize = 1024;

fn config() -> serde_json::Value {
    json!({
        "model_type": "qwen3_5", "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": true,
        "text_config": {
            "model_type": "qwen3_5_text", "vocab_size": 300, "hidden_size": TEXT, "num_hidden_layers": 1,
            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 64,
            "rms_norm_eps": 1e-6, "layer_types": ["full_attention"], "max_position_embeddings": 4096,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 16, "linear_conv_kernel_dim": 4,
        },
        "vision_config": {
            "depth": 12, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_heads": 12, "in_channels": 3,
            "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": TEXT,
            "num_position_embeddings": 2304,
        },
    })
}

fn text_tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("model.language_model.embed_tokens.weight".into(), vec![300, TEXT]),
        ("model.language_model.norm.weight".into(), vec![TEXT]),
    ];
    for (name, shape) in [
        ("input_layernorm", vec![TEXT]),
        ("post_attention_layernorm", vec![TEXT]),
        ("self_attn.q_proj", vec![4096, TEXT]),
        ("self_attn.k_proj", vec![512, TEXT]),
        ("self_attn.v_proj", vec![512, TEXT]),
        ("self_attn.o_proj", vec![TEXT, 2048]),
        ("self_attn.q_norm", vec![256]),
        ("self_attn.k_norm", vec![256]),
        ("mlp.gate_proj", vec![64, TEXT]),
        ("mlp.up_proj", vec![64, TEXT]),
        ("mlp.down_proj", vec![TEXT, 64]),
    ] {
        tensors.push((format!("model.language_model.layers.0.{name}.weight"), shape));
    }
    tensors
}

fn tower_tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![("model.visual.pos_embed.weight".into(), vec![2304, HIDDEN])];
    let mut add = |name: &str, shape: &[usize]| {
        tensors.push((format!("model.visual.{name}.weight"), shape.to_vec()));
        tensors.push((format!("model.visual.{name}.bias"), vec![shape[0]]));
    };
    add("patch_embed.proj", &[HIDDEN, 3, 2, 16, 16]);
    for i in 0..12 {
        add(&format!("blocks.{i}.norm1"), &[HIDDEN]);
        add(&format!("blocks.{i}.attn.qkv"), &[3 * HIDDEN, HIDDEN]);
        add(&format!("blocks.{i}.attn.proj"), &[HIDDEN, HIDDEN]);
        add(&format!("blocks.{i}.norm2"), &[HIDDEN]);
        add(&format!("blocks.{i}.mlp.linear_fc1"), &[INNER, HIDDEN]);
        add(&format!("blocks.{i}.mlp.linear_fc2"), &[HIDDEN, INNER]);
    }
    add("merger.norm", &[HIDDEN]);
    add("merger.linear_fc1", &[4 * HIDDEN, 4 * HIDDEN]);
    add("merger.linear_fc2", &[TEXT, 4 * HIDDEN]);
    tensors
}

fn write_checkpoint(folder: &std::path::Path) -> Result<(), Box<dyn Error>> {
    std::fs::write(folder.join("config.json"), config().to_string())?;
    let tensors = [text_tensors(), tower_tensors()].concat();
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bf16::from_f32(((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.04)
    };
    let mut values =
        |shape: &[usize]| (0..shape.iter().product()).flat_map(|_: usize| number().to_le_bytes()).collect();
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, shape)| values(shape)).collect();
    let mut views = vec![];
    for ((name, shape), data) in tensors.iter().zip(&data) {
        views.push((name, TensorView::new(Dtype::BF16, shape.clone(), data)?));
    }
    Ok(safetensors::serialize_to_file(views, None, &folder.join("model.safetensors"))?)
}
