//! How a checkpoint makes embeddings: the pooling that its files for sentence-transformers name.

use std::path::Path;

use engine::Pooling;
use serde_json::Value;

/// sentence-transformers' names of poolings, in `pooling_mode` or as the end of a key's name.
const POOLINGS: [(&str, Option<Pooling>); 6] = [
    ("lasttoken", Some(Pooling::Last)),
    ("mean_tokens", Some(Pooling::Mean)),
    ("mean", Some(Pooling::Mean)),
    ("cls_token", None),
    ("max_tokens", None),
    ("weightedmean_tokens", None),
];

/// Reads modules.json and 1_Pooling/config.json of a checkpoint's folder. Models without them were
/// trained to generate; the mean represents a text better than their last token.
///
/// # Errors
/// The checkpoint names a pooling, or layers after it, that are not supported.
pub(crate) fn from_folder(folder: &Path) -> Result<Pooling, String> {
    let read = |name: &str| -> Result<Value, String> {
        let path = folder.join(name);
        if !path.exists() {
            return Ok(Value::Null);
        }
        let bytes = files::read(&path, files::SETTINGS).map_err(|error| format!("{name}: {error}"))?;
        serde_json::from_slice(&bytes).map_err(|error| format!("{name}: {error}"))
    };
    from_files(&read("modules.json")?, &read("1_Pooling/config.json")?)
}

fn from_files(modules: &Value, config: &Value) -> Result<Pooling, String> {
    let types = modules.as_array().into_iter().flatten().filter_map(|module| module["type"].as_str());
    let mut kinds = types.filter_map(|path| path.rsplit('.').next());
    match kinds.find(|kind| !["Transformer", "Pooling", "Normalize"].contains(kind)) {
        Some(kind) => Err(format!("modules.json has a layer of type {kind}, which is not supported")),
        None => pooling(config),
    }
}

fn pooling(config: &Value) -> Result<Pooling, String> {
    let is_set = |name: &str| {
        config["pooling_mode"] == name || config[format!("pooling_mode_{name}")].as_bool() == Some(true)
    };
    let mut set = POOLINGS.iter().filter(|(name, _)| is_set(name));
    match (set.next(), set.next()) {
        (None, _) if config["pooling_mode"].is_null() => Ok(Pooling::Mean),
        (Some((_, Some(pooling))), None) => Ok(*pooling),
        _ => Err("1_Pooling/config.json names a pooling other than the mean or the last token".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(modules: &[&str], config: &Value, expected: Result<Pooling, &str>) {
        let module = |kind: &&str| json!({ "type": format!("sentence_transformers.models.{kind}") });
        let modules: Value = modules.iter().map(module).collect();
        let found = from_files(&modules, config);
        match (&found, expected) {
            (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
            _ => assert_eq!(found, expected.map_err(str::to_owned), "{config}"),
        }
    }

    #[test]
    fn pooling_is_that_of_sentence_transformers_files() {
        let usual = ["Transformer", "Pooling", "Normalize"];
        check(&[], &Value::Null, Ok(Pooling::Mean));
        // Qwen3-Embedding.
        let qwen3 = json!({ "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true });
        check(&usual, &qwen3, Ok(Pooling::Last));
        check(&usual, &json!({ "pooling_mode_mean_tokens": true }), Ok(Pooling::Mean));
        check(&usual, &json!({ "pooling_mode": "lasttoken" }), Ok(Pooling::Last));
        check(&usual, &json!({ "pooling_mode_cls_token": true }), Err("pooling"));
        check(&usual, &json!({ "pooling_mode": "splade" }), Err("pooling"));
        let both = json!({ "pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true });
        check(&usual, &both, Err("pooling"));
        check(&["Transformer", "Pooling", "Dense"], &qwen3, Err("Dense"));
    }
}
