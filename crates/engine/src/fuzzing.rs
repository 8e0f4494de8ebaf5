//! Entry points for fuzzing the parsers of model files and state files. Each takes a file's bytes
//! and returns `Ok` or an error; none may panic, hang or allocate more than its input justifies.

use std::{fs, path::Path};

use mlx::{Dtype, load::Safetensors};
use serde_json::Value;

use crate::{
    checkpoint_files::indexed_names,
    error::LoadError,
    load::with_top_level_keys,
    models,
    prefix::disk_cache::check_file,
    weights::{Layout, QuantizationConfig, Types, Weights},
};

type Outcome = Result<(), String>;

/// Maximum tensors of a model that [`config_json`] builds; it gives up on larger ones.
const MOST_TENSORS: usize = 100;
/// Bytes of magic and numbers in a state file; the checksum follows.
const STATE_NUMBERS: usize = 20;
const STATE_HEADER: usize = STATE_NUMBERS + 32;

/// Opens a safetensors file and reads every tensor.
pub fn safetensors_header(bytes: &[u8]) -> Outcome {
    let open = || Safetensors::from_static("fuzzed", Vec::from(bytes)).map_err(text);
    let mut file = open()?;
    let mut read = 0;
    for name in file.names() {
        read += file.bytes_of(&name);
        if let Ok(array) = file.read(&name) {
            assert_eq!(array.nbytes(), file.bytes_of(&name), "{name}");
        }
    }
    assert!(read <= bytes.len(), "more data than the file holds");
    let (types, declared) = (Types::default(), QuantizationConfig::default());
    Weights::new(vec![open()?], &Layout::plain(&Value::Null), types, declared, Box::new(|_, _| {}))
        .map_err(text)?;
    Ok(())
}

/// Reads a model.safetensors.index.json; every name that it returns stays in its folder.
pub fn safetensors_index(bytes: &[u8]) -> Outcome {
    let index: Value = serde_json::from_slice(bytes).map_err(text)?;
    let folder = Path::new("/folder");
    for name in indexed_names(&index)? {
        let path = folder.join(&name);
        let leaves = path.components().any(|part| part == std::path::Component::ParentDir);
        assert!(path.starts_with(folder) && path != folder && !leaves, "{name:?} lies outside its folder");
    }
    Ok(())
}

/// Builds the model of a config.json over tensors with shapes but no data.
pub fn config_json(bytes: &[u8]) -> Outcome {
    mlx::build_shapes_only();
    let config: Value = serde_json::from_slice(bytes).map_err(text)?;
    models::is_dflash(&config);
    QuantizationConfig::from_config(&config).map_err(text)?;
    let family = models::family(&config).map_err(text)?;
    let text_config = with_top_level_keys(models::text_config(&config), &config);
    for name in ["model.layers.0.mlp.up_proj.weight", "lm_head.weight", "model.layers.9.x", ".", ""] {
        (family.sanitize)(&text_config, name);
    }
    let mut tensors: Vec<(String, Dtype, Vec<i32>)> = vec![];
    if text_config.get("vision_config").is_some() {
        // A checkpoint without any tensor of a tower has none.
        tensors.push(("visual.patch_embed.proj.bias".into(), Dtype::Bfloat16, vec![]));
    }
    // Loading fails on the first missing tensor: describe it and try again.
    while tensors.len() <= MOST_TENSORS {
        let declared = QuantizationConfig::from_config(&config).map_err(text)?;
        let weights = Weights::described(
            tensors.iter().cloned(),
            &Layout::plain(&text_config),
            Types::default(),
            declared,
        )
        .map_err(text)?;
        match (family.load)(&text_config, &weights) {
            Ok(model) => {
                let caches = model.make_caches();
                weights.summary(&text_config);
                assert!(!caches.is_empty() && model.vocab_size() > 0, "a model without layers or tokens");
                return weights.all_used().map_err(text);
            }
            Err(LoadError::MissingTensor(name)) => tensors.push((name, Dtype::Bfloat16, vec![])),
            Err(LoadError::WrongShape { name, found, expected }) => {
                let known = tensors.iter_mut().find(|(known, ..)| *known == name && found.is_empty());
                let known = known.ok_or_else(|| format!("{name} has two shapes"))?;
                known.2 = expected;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("more tensors than fuzzing has time for".into())
}

/// Reads a state file of the disk cache, written to `scratch`. Its header first gets the correct
/// checksum, which mutation cannot find.
pub fn disk_state(bytes: &[u8], scratch: &Path) -> Outcome {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= STATE_HEADER {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [description, tokens] = [number(12), number(16)].map(|length| length as usize);
        let end = STATE_HEADER.saturating_add(description).saturating_add(tokens.saturating_mul(4));
        if end <= bytes.len() {
            let mut hash = blake3::Hasher::new();
            hash.update(&bytes[..STATE_NUMBERS]).update(&bytes[STATE_HEADER..end]);
            bytes[STATE_NUMBERS..STATE_HEADER].copy_from_slice(hash.finalize().as_bytes());
        }
    }
    fs::write(scratch, &bytes).map_err(text)?;
    check_file(scratch)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(test)]
#[path = "../../../fuzz/check_seeds.rs"]
mod check_seeds;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{check_seeds::check_seeds, *};

    #[test]
    fn seeds_of_safetensors_are_read_or_refused() {
        check_seeds("safetensors_header", safetensors_header, 3);
        check_seeds("safetensors_index", safetensors_index, 2);
    }

    #[test]
    fn seeds_of_configs_are_built_or_refused() {
        check_seeds("config_json", config_json, 15);
    }

    #[test]
    fn seeds_of_state_are_read_or_refused() {
        let scratch = tempfile::NamedTempFile::new().expect("a file");
        check_seeds("disk_state", |bytes| disk_state(bytes, scratch.path()), 5);
    }

    #[test]
    fn state_file_with_sizes_that_overflow_64_bits_is_refused() {
        let none = blake3::hash(b"").to_hex().to_string();
        let petabyte = json!({ "shape": [1 << 16, 1 << 16, 1 << 16], "dtype": "float32" });
        let layer = json!({ "arrays": [petabyte, petabyte] });
        let description = json!({
            "fingerprint": "", "model": "", "from": 1, "run": [], "checkpoint": vec![layer; 1 << 13],
            "checksums": [none, none],
        });
        let description = description.to_string();
        let numbers = [2, description.len() as u32, 1].map(u32::to_le_bytes).concat();
        let file = [b"LANSTATE", &numbers[..], &[0; 32], description.as_bytes(), &[0; 4]].concat();
        let scratch = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(disk_state(&file, scratch.path()), Err("its shapes are wrong".into()));
    }
}
