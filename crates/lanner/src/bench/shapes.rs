//! Shapes of well-known models: the parts of their config.json that determine the size and kind of
//! every layer.

use std::path::Path;

use serde_json::Value;

/// By name, as published.
const SHAPES: &str = include_str!("shapes.json");

/// A shape to make random weights for.
pub(crate) struct Shape {
    pub name: String,
    pub config: Value,
}

/// Names of the known shapes, by size.
fn names() -> Vec<String> {
    known().as_object().into_iter().flat_map(|shapes| shapes.keys().cloned()).collect()
}

impl Shape {
    /// The shape called `name`, else that of the config.json at that path.
    ///
    /// # Errors
    /// There is neither such a shape nor such a file.
    pub(crate) fn find(name: &str) -> Result<Shape, String> {
        if let Some(config) = known().get(name) {
            return Ok(Shape { name: name.into(), config: config.clone() });
        }
        let path = Path::new(name);
        if !path.is_file() {
            return Err(format!("it is none of {}, and no config.json", names().join(", ")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        let config = serde_json::from_str(&text).map_err(|e| format!("the file is not JSON: {e}"))?;
        Ok(Shape { name: name.into(), config })
    }
}

fn known() -> Value {
    serde_json::from_str(SHAPES).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of a shape has the value of the model's recorded config.json.
    fn check(name: &str, recorded: &str) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/tests/configs");
        let text = std::fs::read_to_string(format!("{folder}/{recorded}.json")).unwrap();
        let recorded: Value = serde_json::from_str(&text).unwrap();
        let config = &recorded["config"];
        let text = config.get("text_config").unwrap_or(config);
        for (key, value) in Shape::find(name).unwrap().config.as_object().unwrap() {
            let recorded = text.get(key).or_else(|| config.get(key));
            assert_eq!(recorded, Some(value), "{name}: {key}");
        }
    }

    #[test]
    fn shapes_match_the_published_configs() {
        check("qwen3.5-0.8b", "Qwen3.5-0.8B");
        check("qwen3.5-4b", "Qwen3.5-4B");
        check("qwen3.5-9b", "Qwen3.5-9B");
        check("llama-8b", "Meta-Llama-3.1-8B");
        check("qwen3-30b", "Qwen3-30B-A3B");
        check("qwen3.6-35b", "Qwen3.6-35B-A3B");
        check("gpt-oss-20b", "gpt-oss-20b");
        check("gemma-3-4b", "gemma-3-4b-it");
        assert_eq!(names().len(), 8);
    }

    #[test]
    fn unknown_shape_error_lists_the_known_ones() {
        let error = Shape::find("qwen9").map(|shape| shape.name).unwrap_err();
        assert!(error.contains("qwen3.5-0.8b") && error.contains("config.json"), "{error}");
    }
}
