//! The index of a model's shards: model.safetensors.index.json.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::name::is_safe_path;

/// File names of the shards.
///
/// # Errors
/// It is not an index, or names a file outside its folder.
pub(super) fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|error| format!("its index: {error}"))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| !is_safe_path(name)) {
        Some(name) => {
            let name: String = name.chars().take(200).flat_map(char::escape_debug).collect();
            Err(format!("its index names the file `{name}`, which is not in its folder"))
        }
        None => Ok(names),
    }
}
