//! Published configurations: each finds its family, and the family reads exactly the tensors that
//! its checkpoint holds.

use mlx::Dtype;
use serde_json::Value;

use crate::{
    load::with_top_level_keys,
    models,
    weights::{QuantizationConfig, Types, Weights},
};

#[path = "../../tests/configs/mod.rs"]
mod configs;

fn read(name: &str) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/configs");
    let text = std::fs::read_to_string(format!("{folder}/{name}")).expect("a recorded configuration");
    serde_json::from_str(&text).expect("JSON")
}

fn dtype(name: &str) -> Dtype {
    match name {
        "BF16" => Dtype::Bfloat16,
        "F16" => Dtype::Float16,
        "F32" => Dtype::Float32,
        "U32" => Dtype::Uint32,
        "U8" => Dtype::Uint8,
        other => panic!("dtype {other}"),
    }
}

fn tensors(recorded: &Value) -> Vec<(String, Dtype, Vec<i32>)> {
    let patterns = recorded["tensors"].as_object().expect("tensors");
    let expand = |(pattern, spec): (&String, &Value)| {
        let dtype = dtype(spec[0].as_str().expect("a dtype"));
        let shape = spec[1].as_array().expect("a shape").iter();
        let shape: Vec<i32> = shape.map(|d| d.as_i64().expect("a length") as i32).collect();
        configs::expand(pattern).into_iter().map(move |name| (name, dtype, shape.clone()))
    };
    patterns.iter().flat_map(expand).collect()
}

/// Builds the model over tensors that are only described.
fn check(recorded: &Value) -> Result<usize, String> {
    let config = &recorded["config"];
    let family = models::family(config).map_err(|e| e.to_string())?;
    if family.name != recorded["family"] {
        return Err(format!("taken for {}", family.name));
    }
    let declared = QuantizationConfig::from_config(config).map_err(|e| e.to_string())?;
    let text = with_top_level_keys(models::text_config(config), config);
    let tensors = tensors(recorded);
    let count = tensors.len();
    let has_head = tensors.iter().any(|(name, ..)| name.contains("mtp.fc.") || name.contains(".eh_proj."));
    let weights = Weights::described(tensors, &family.layout(&text), Types::default(), declared)
        .map_err(|e| e.to_string())?;
    let model = (family.load)(&text, &weights).map_err(|e| e.to_string())?;
    weights.all_used().map_err(|e| e.to_string())?;
    if model.make_caches().is_empty() || model.context_length() < 512 {
        return Err("it has no caches, or no context".into());
    }
    match model.mtp().is_some() == has_head {
        true => Ok(count),
        false => Err(format!("that it has a head which looks further ahead is {has_head}")),
    }
}

#[test]
fn published_checkpoints_fit_their_families() {
    mlx::build_shapes_only();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/configs");
    let (mut seen, mut failures) = (0, vec![]);
    for entry in std::fs::read_dir(folder).expect("configurations") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if !name.ends_with(".json") || name == "unsupported.json" {
            continue;
        }
        seen += 1;
        match check(&read(&name)) {
            Ok(count) => println!("{name}: {count} tensors"),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(seen >= 40, "{seen} configurations");
    assert!(failures.is_empty(), "{} of {seen} do not fit:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn other_families_are_refused_by_name() {
    let unsupported = read("unsupported.json");
    let unsupported = unsupported.as_object().expect("an object");
    assert!(unsupported.len() >= 50);
    for (folder, model_type) in unsupported {
        let error = models::family(&serde_json::json!({ "model_type": model_type })).err();
        let message = error.unwrap_or_else(|| panic!("{folder} was accepted")).to_string();
        assert!(message.contains(model_type.as_str().expect("a name")), "{folder}: {message}");
    }
}
