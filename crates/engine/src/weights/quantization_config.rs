//! config.json's quantisation map. Shapes decide; an entry that contradicts them is an error.

use std::collections::HashMap;

use mlx::quant::{Mode, Quantization};
use serde_json::{Map, Value};

use crate::error::{LoadError, Result};

/// Format by path; `None` for not quantised.
#[derive(Default)]
pub(crate) struct QuantizationConfig(HashMap<String, Option<Quantization>>);

impl QuantizationConfig {
    /// Reads `quantization` (or MLX's copy of it, `quantization_config`).
    ///
    /// # Errors
    /// An entry is invalid, or the checkpoint is in the format of another library.
    pub(crate) fn from_config(config: &Value) -> Result<QuantizationConfig> {
        let [own, other] = entries(config);
        let method = other.and_then(|map| map.get("quant_method")).and_then(Value::as_str);
        if let (None, Some(method)) = (own, method.filter(|&method| method != "mxfp4")) {
            return Err(LoadError::Config(format!(
                "quantization method `{method}` is not supported; take an unquantised or MLX checkpoint (affine, mxfp4, \
                 mxfp8, nvfp4)"
            )));
        }
        let Some(map) = own.or(other) else { return Ok(QuantizationConfig::default()) };
        // The default is in the same object as the paths.
        let default = quantization(map).ok();
        let mut declared = HashMap::new();
        for (path, value) in map {
            let entry = match value {
                Value::Bool(false) => None,
                Value::Bool(true) if default.is_some() => default,
                Value::Object(entry) if entry.contains_key("bits") => Some(
                    quantization(entry)
                        .map_err(|e| LoadError::Config(format!("quantization of {path}: {e}")))?,
                ),
                _ => continue,
            };
            declared.insert(path.clone(), entry);
        }
        Ok(QuantizationConfig(declared))
    }

    /// The format of matrices that have no entry of their own; `None` if they are not quantised or
    /// config.json does not name it.
    pub(crate) fn default_format(config: &Value) -> Option<Quantization> {
        let [own, other] = entries(config);
        quantization(own.or(other)?).ok()
    }

    /// Compares the format of a tensor `PATH.weight` with the entry of PATH, if any.
    pub(crate) fn check(&self, stored: &str, found: Option<Quantization>) -> std::result::Result<(), String> {
        let path = stored.strip_suffix(".weight").unwrap_or(stored);
        match self.0.get(path) {
            Some(declared) if *declared != found => Err(format!(
                "config.json says it is {}, its shapes say {}",
                describe(*declared),
                describe(found)
            )),
            _ => Ok(()),
        }
    }
}

/// Whether config.json says that experts are in MXFP4 and the rest is not, as gpt-oss's does.
pub(crate) fn has_mxfp4_experts(config: &Value) -> bool {
    entries(config).into_iter().flatten().any(|entry| entry.get("quant_method") == Some(&"mxfp4".into()))
}

/// `quantization`, and MLX's copy of it, `quantization_config`, of a config.json or its text part.
fn entries(config: &Value) -> [Option<&Map<String, Value>>; 2] {
    ["quantization", "quantization_config"].map(|key| {
        let found = config.get(key).or_else(|| config.get("text_config")?.get(key));
        found.and_then(Value::as_object)
    })
}

fn quantization(map: &Map<String, Value>) -> std::result::Result<Quantization, String> {
    let number = |key: &str| map.get(key).and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok());
    let name = map.get("mode").and_then(Value::as_str).unwrap_or("affine");
    let mode = Mode::ALL.into_iter().find(|mode| mode.name() == name);
    let mode = mode.ok_or_else(|| format!("mode `{name}` is unknown"))?;
    match (mode.fixed(), number("group_size"), number("bits")) {
        (Some(fixed), ..) => Ok(fixed),
        (None, Some(group_size), Some(bits)) => Ok(Quantization { mode, group_size, bits }),
        _ => Err("group_size or bits is missing".into()),
    }
}

fn describe(quantization: Option<Quantization>) -> String {
    match quantization {
        None => "not quantised".into(),
        Some(Quantization { mode: Mode::Affine, group_size, bits }) => {
            format!("{bits}-bit affine in groups of {group_size}")
        }
        Some(Quantization { mode, .. }) => mode.name().into(),
    }
}
