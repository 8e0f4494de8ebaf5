//! Generates checkpoints of goldens: names, shapes and ranges are recorded, and the values follow
//! from them. tools/goldens/tensors.py does the same in Python.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a recorded checkpoint.
pub(crate) fn folder(name: &str) -> TempDir {
    let recorded = recorded().join(name);
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(recorded.join("golden.json")).expect("golden.json");
    write(&serde_json::from_str(&text).expect("a golden"), folder.path());
    fs::copy(recorded.join("config.json"), folder.path().join("config.json")).expect("config.json");
    folder
}

/// The folder of the goldens.
pub(crate) fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/goldens")
}

/// Writes model.safetensors into `folder`, or the shards of `golden` and their index.
pub(crate) fn write(golden: &Value, folder: &Path) {
    let seed = golden["seed"].as_u64().expect("seed");
    let specs: BTreeMap<&str, &Value> = golden["tensors"]
        .as_object()
        .expect("tensors")
        .iter()
        .map(|(name, spec)| (name.as_str(), spec))
        .collect();
    let shards = golden["shards"].as_u64().unwrap_or(1) as usize;
    if shards == 1 {
        return write_file(seed, &specs, &folder.join("model.safetensors"));
    }
    let mut weight_map = serde_json::Map::new();
    for shard in 0..shards {
        let file = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let part: BTreeMap<&str, &Value> =
            specs.iter().skip(shard).step_by(shards).map(|(&name, &spec)| (name, spec)).collect();
        weight_map.extend(part.keys().map(|name| (name.to_string(), json!(file))));
        write_file(seed, &part, &folder.join(file));
    }
    let index = json!({"metadata": {}, "weight_map": weight_map});
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).expect("index written");
}

fn write_file(seed: u64, specs: &BTreeMap<&str, &Value>, path: &Path) {
    let data: Vec<Vec<u8>> = specs.iter().map(|(name, spec)| values(name, seed, spec)).collect();
    let views = specs.iter().zip(&data).map(|((&name, spec), data)| {
        (name, TensorView::new(dtype(spec), shape(spec), data).unwrap_or_else(|e| panic!("{name}: {e}")))
    });
    let metadata = [("format".to_string(), "pt".to_string())].into();
    safetensors::serialize_to_file(views, Some(metadata), path).expect("weights written");
}

/// The bytes of tensor `name`. Element i is derived from output i of SplitMix64, seeded with the
/// name's hash xor `seed`, as `spec` says.
pub(crate) fn values(name: &str, seed: u64, spec: &Value) -> Vec<u8> {
    let count = shape(spec).iter().product::<usize>() as u64;
    let start = fnv1a(name) ^ seed;
    let outputs = (1..=count).map(|i| splitmix64(start.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15))));
    let number = |key: &str| spec[key].as_f64().unwrap_or_else(|| panic!("{name} has no {key}"));
    match dtype(spec) {
        Dtype::U32 => {
            let mask = spec["mask"].as_u64().unwrap_or(u64::MAX);
            outputs.flat_map(|z| (((z >> 32) & mask) as u32).to_le_bytes()).collect()
        }
        Dtype::U8 => {
            let (low, high) = (number("low") as u64, number("high") as u64);
            outputs.map(|z| (low + (z >> 40) % (high - low + 1)) as u8).collect()
        }
        float => {
            let (mean, spread) = (number("mean"), number("spread"));
            let floats = outputs.map(|z| (mean + spread * ((z >> 40) as f64 / 8_388_608.0 - 1.0)) as f32);
            match float {
                Dtype::F32 => floats.flat_map(f32::to_le_bytes).collect(),
                Dtype::BF16 => floats.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
                _ => floats.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect(),
            }
        }
    }
}

/// FNV-1a, 64 bits.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators).
fn splitmix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn dtype(spec: &Value) -> Dtype {
    match spec["dtype"].as_str() {
        Some("F32") => Dtype::F32,
        Some("BF16") => Dtype::BF16,
        Some("F16") => Dtype::F16,
        Some("U32") => Dtype::U32,
        Some("U8") => Dtype::U8,
        other => panic!("dtype {other:?}"),
    }
}

fn shape(spec: &Value) -> Vec<usize> {
    let sides = spec["shape"].as_array().expect("shape");
    sides.iter().map(|side| side.as_u64().expect("a length") as usize).collect()
}

#[test]
fn generated_values_equal_those_of_tensors_py() {
    let check = |name: &str, seed: u64, spec: Value, expected: &str| {
        let got: String = values(name, seed, &spec).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, expected, "{name}");
    };
    let norm = "model.norm.weight";
    let up = "model.layers.0.mlp.up_proj";
    check(
        "model.embed_tokens.weight",
        7,
        json!({"dtype": "F32", "shape": [2, 2], "mean": 0, "spread": 0.35}),
        "158045bdfe86563e80f2383e2720233e",
    );
    check(norm, 7, json!({"dtype": "BF16", "shape": [4], "mean": 1, "spread": 0.35}), "853f493f463f5b3f");
    check(
        norm,
        (1 << 63) + 5,
        json!({"dtype": "F16", "shape": [4], "mean": -0.5, "spread": 0.35}),
        "f5b8a8b913b4e8b9",
    );
    check(
        &format!("{up}.weight"),
        7,
        json!({"dtype": "U32", "shape": [3], "bits": true}),
        "6472626e39348aafe3e402d4",
    );
    check(
        &format!("{up}.weight"),
        7,
        json!({"dtype": "U32", "shape": [3], "bits": true, "mask": 0xBFBFBFBFu32}),
        "2432222e39348aafa3a40294",
    );
    check(
        &format!("{up}.scales"),
        7,
        json!({"dtype": "U8", "shape": [2, 3], "low": 119, "high": 123}),
        "78777b7b7b7b",
    );
}
