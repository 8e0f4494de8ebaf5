use std::collections::BTreeMap;

use mlx::quant::{self, Mode, Quantization};
use safetensors::{Dtype as StoredDtype, tensor::TensorView};
use serde_json::json;

use super::*;

const Q: Quantization = Quantization { mode: Mode::Affine, group_size: 32, bits: 8 };

/// A checkpoint with these tensors, loaded as `config` says.
fn weights(tensors: &[(&str, StoredDtype, &Array)], config: &Value) -> Weights {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let stored: BTreeMap<&str, (StoredDtype, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, dtype, array)| {
            let shape = array.shape().iter().map(|&dim| dim as usize).collect();
            (*name, (*dtype, shape, array.to_bytes().expect("bytes")))
        })
        .collect();
    let views = stored.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &path).expect("written");
    let files = vec![Safetensors::open(&path).expect("opens")];
    let (types, config_of_weights) = (Types::default(), QuantizationConfig::default());
    Weights::new(files, &Layout::plain(config), types, config_of_weights, Box::new(|_, _| {})).expect("fits")
}

fn dense(w: &Weights, name: &str, shape: &[i32]) -> Vec<f32> {
    match w.matrix(name, shape).expect("a matrix") {
        Matrix::Dense(array) => array.to_f32().expect("values"),
        Matrix::Quantized(_) => panic!("{name} is quantised"),
    }
}

fn numbers(shape: &[i32]) -> Array {
    let count = shape.iter().product::<i32>();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    Array::from_slice(&values, shape)
}

/// MLX's conversions made before `embed_q` existed hold a quantised `kv_b_proj`.
#[test]
fn quantized_kv_b_proj_is_dequantized_before_it_is_cut() {
    let (heads, nope, value, rank) = (2, 3, 5, 64);
    let packed = quant::quantize(&numbers(&[heads * (nope + value), rank]), Q);
    let biases = packed.biases.as_ref().expect("affine");
    let names =
        ["weight", "scales", "biases"].map(|part| format!("model.layers.0.self_attn.kv_b_proj.{part}"));
    let config = json!({
        "num_attention_heads": heads, "qk_nope_head_dim": nope, "v_head_dim": value, "kv_lora_rank": rank,
    });
    let tensors = [
        (&*names[0], StoredDtype::U32, &packed.codes),
        (&*names[1], StoredDtype::F32, &packed.scales),
        (&*names[2], StoredDtype::F32, biases),
    ];
    let w = weights(&tensors, &config);
    let attention = w.sub("model.layers.0.self_attn");
    let embed_q = dense(&attention, "embed_q", &[heads, rank, nope]);
    let unembed_out = dense(&attention, "unembed_out", &[heads, value, rank]);

    let both = packed.dequantize(Dtype::Float32).reshape(&[heads, nope + value, rank]);
    let keys = both.slice(1, 0, nope).transpose(&[0, 2, 1]).contiguous();
    assert_eq!(embed_q, keys.to_f32().expect("values"));
    let values = both.slice(1, nope, nope + value).contiguous();
    assert_eq!(unembed_out, values.to_f32().expect("values"));
    w.all_used().expect("all three are used");
    assert_eq!(w.loaded_bytes(), w.total_bytes(), "read once");
}

#[test]
fn fused_gate_up_proj_is_split_into_stacks() {
    let (experts, size, hidden) = (3, 4, 8);
    let both = numbers(&[experts, 2 * size, hidden]);
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    let w = weights(&[(name, StoredDtype::F32, &both)], &json!({}));
    let mlp = w.sub("model.layers.0.mlp.switch_mlp");
    for (i, name) in ["gate_proj", "up_proj"].into_iter().enumerate() {
        let half = both.slice(1, i as i32 * size, (i as i32 + 1) * size).contiguous();
        assert_eq!(dense(&mlp, name, &[experts, size, hidden]), half.to_f32().expect("values"), "{name}");
    }
    assert_eq!(w.loaded_bytes(), w.total_bytes(), "read once");
}
