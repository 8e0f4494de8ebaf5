//! Model families: one file and one row in [`FAMILIES`] each.

mod attention;
mod config;
mod decoder;
mod deepseek_v3;
mod dflash;
mod gated_delta_net;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod kimi_linear;
mod layer;
mod lfm2;
mod limits;
mod llama;
mod mla;
mod model;
mod mtp;
mod names;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod rope;
mod sigmoid_moe;
mod vision;

pub(crate) use dflash::{DFlash, is_dflash};
pub(crate) use model::Model;
pub(crate) use mtp::Mtp;
pub(crate) use names::{is_nextn_layer, text_config};
pub(crate) use vision::{ImagePositions, Tower};

use serde_json::Value;

use self::names::plain_names;
use crate::{
    api::Vision,
    error::{LoadError, Result},
    weights::{Layout, Rule, Weights},
};

/// How to load the checkpoints of a family.
pub(crate) struct Family {
    /// Name of its file.
    pub name: &'static str,
    /// Values of config.json's `model_type`.
    pub model_types: &'static [&'static str],
    /// A tensor name to its canonical path, given the text part of config.json; `None` drops the
    /// tensor.
    pub sanitize: fn(&Value, &str) -> Option<String>,
    /// Its tensors whose layout differs from MLX's, in addition to the common rules.
    pub rules: &'static [Rule],
    /// Whether its vision towers are supported.
    pub vision: bool,
    /// Builds a model from the text part of config.json.
    pub load: fn(&Value, &Weights) -> Result<Box<dyn Model>>,
}

impl Family {
    /// The layout of its checkpoints, given the text part of config.json.
    pub(crate) fn layout<'a>(&self, config: &'a Value) -> Layout<'a> {
        Layout { config, rules: self.rules, sanitize: self.sanitize }
    }
}

pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "llama",
        model_types: &["llama", "mistral", "ministral3", "mistral3"],
        sanitize: llama::sanitize,
        rules: &[],
        vision: true,
        load: llama::load,
    },
    Family {
        name: "qwen2",
        model_types: &["qwen2"],
        sanitize: plain_names,
        rules: &[],
        vision: false,
        load: qwen2::load,
    },
    Family {
        name: "qwen3",
        model_types: &[
            "qwen3",
            "qwen3_moe",
            "qwen3_vl",
            "qwen3_vl_text",
            "qwen3_vl_moe",
            "qwen3_vl_moe_text",
        ],
        sanitize: qwen3::sanitize,
        rules: qwen3::LAYOUT,
        vision: true,
        load: qwen3::load,
    },
    Family {
        name: "qwen3_5",
        model_types: &["qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"],
        sanitize: qwen3_5::sanitize,
        rules: qwen3_5::LAYOUT,
        vision: true,
        load: qwen3_5::load,
    },
    Family {
        name: "gemma2",
        model_types: &["gemma2"],
        sanitize: plain_names,
        rules: &[],
        vision: false,
        load: gemma2::load,
    },
    Family {
        name: "gemma3",
        model_types: &["gemma3", "gemma3_text"],
        sanitize: gemma3::sanitize,
        rules: &[],
        vision: true,
        load: gemma3::load,
    },
    Family {
        name: "gemma4",
        model_types: &["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"],
        sanitize: gemma4::sanitize,
        rules: &[],
        vision: true,
        load: gemma4::load,
    },
    Family {
        name: "glm4",
        model_types: &["glm4"],
        sanitize: plain_names,
        rules: &[],
        vision: false,
        load: glm4::load,
    },
    Family {
        name: "glm4_moe",
        model_types: &["glm4_moe"],
        sanitize: deepseek_v3::sanitize,
        rules: &[],
        vision: false,
        load: glm4_moe::load,
    },
    Family {
        name: "deepseek_v3",
        model_types: &["deepseek_v3", "kimi_k2", "glm4_moe_lite"],
        sanitize: deepseek_v3::sanitize,
        rules: &[],
        vision: false,
        load: deepseek_v3::load,
    },
    Family {
        name: "kimi_linear",
        model_types: &["kimi_linear"],
        sanitize: kimi_linear::sanitize,
        rules: kimi_linear::LAYOUT,
        vision: false,
        load: kimi_linear::load,
    },
    Family {
        name: "lfm2",
        model_types: &["lfm2", "lfm2_moe", "lfm2_vl", "lfm2-vl"],
        sanitize: lfm2::sanitize,
        rules: lfm2::LAYOUT,
        vision: true,
        load: lfm2::load,
    },
    Family {
        name: "gpt_oss",
        model_types: &["gpt_oss"],
        sanitize: plain_names,
        rules: gpt_oss::LAYOUT,
        vision: false,
        load: gpt_oss::load,
    },
];

/// Name and `model_type`s of every family.
pub fn families() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    FAMILIES.iter().map(|family| (family.name, family.model_types))
}

/// Image support of a model with this config.json's text part, with or without a `tower`.
pub(crate) fn vision_support(config: &Value, tower: Option<&dyn Tower>) -> Vision {
    vision::support(config, tower, family(config).is_ok_and(|family| family.vision))
}

/// The family of a config.json.
///
/// # Errors
/// `model_type` is absent or unknown; the error lists the known ones.
pub(crate) fn family(config: &Value) -> Result<&'static Family> {
    let found = config.get("model_type").and_then(Value::as_str);
    let found = found.ok_or_else(|| LoadError::Config("there is no model_type in it".into()))?;
    FAMILIES.iter().find(|family| family.model_types.contains(&found)).ok_or_else(|| {
        let supported: Vec<&str> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
        LoadError::UnknownModelType { found: found.into(), supported: supported.join(", ") }
    })
}
