//! Model families: one file each, one row in [`FAMILIES`] each.

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
mod lfm2;
mod llama;
mod mla;
mod mtp;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod sigmoid_moe;

pub use dflash::{DFlash, is_dflash};
pub use mtp::Mtp;

use mlx::Array;
use serde_json::Value;

use crate::{
    batch::Batch,
    cache::Cache,
    error::{LoadError, Result},
    nn::Embedding,
    weights::Weights,
};

/// A loaded model. Rows of a batch never see each other.
pub trait Model {
    /// Hidden states `[tokens, hidden_size]`, after the final norm, of token ids `[tokens]` (uint32).
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array;

    /// Logits `[n, vocab_size]` of hidden states `[n, hidden_size]`.
    fn logits(&self, hidden: &Array) -> Array;

    /// Empty caches for a new sequence, one per layer that has a past of its own.
    fn make_caches(&self) -> Vec<Cache>;

    /// Tokens that it gives logits for.
    fn vocab_size(&self) -> usize;

    /// Tokens of context that it was trained on.
    fn context_length(&self) -> usize;

    /// Layers, of which a batch may [leave out](Batch::leave_out) some; 0 if this model always computes all.
    fn layers(&self) -> usize {
        0
    }

    /// The embedding of its tokens, if drafters can share it, and see what is [behind its layers](Batch::passed).
    fn embedding(&self) -> Option<&Embedding> {
        None
    }

    /// The head that predicts tokens further ahead, if the checkpoint has one.
    fn mtp(&self) -> Option<&Mtp> {
        None
    }
}

/// What a family needs to be loaded.
pub struct Family {
    /// Its file's name.
    pub name: &'static str,
    /// Values of config.json's `model_type`.
    pub model_types: &'static [&'static str],
    /// Checkpoint tensor name to the canonical one, given the text part of config.json; `None` drops the tensor.
    pub sanitize: fn(&Value, &str) -> Option<String>,
    /// Builds a model from the text part of config.json.
    pub load: fn(&Value, &Weights) -> Result<Box<dyn Model>>,
}

pub const FAMILIES: &[Family] = &[
    Family {
        name: "llama",
        model_types: &["llama", "mistral", "ministral3", "mistral3"],
        sanitize: llama::sanitize,
        load: llama::load,
    },
    Family { name: "qwen2", model_types: &["qwen2"], sanitize: plain_names, load: qwen2::load },
    Family {
        name: "qwen3",
        model_types: &["qwen3", "qwen3_moe"],
        sanitize: qwen3::sanitize,
        load: qwen3::load,
    },
    Family {
        name: "qwen3_5",
        model_types: &["qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"],
        sanitize: qwen3_5::sanitize,
        load: qwen3_5::load,
    },
    Family { name: "gemma2", model_types: &["gemma2"], sanitize: plain_names, load: gemma2::load },
    Family {
        name: "gemma3",
        model_types: &["gemma3", "gemma3_text"],
        sanitize: gemma3::sanitize,
        load: gemma3::load,
    },
    Family {
        name: "gemma4",
        model_types: &["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"],
        sanitize: gemma4::sanitize,
        load: gemma4::load,
    },
    Family { name: "glm4", model_types: &["glm4"], sanitize: plain_names, load: glm4::load },
    Family {
        name: "glm4_moe",
        model_types: &["glm4_moe"],
        sanitize: deepseek_v3::sanitize,
        load: glm4_moe::load,
    },
    Family {
        name: "deepseek_v3",
        model_types: &["deepseek_v3", "kimi_k2", "glm4_moe_lite"],
        sanitize: deepseek_v3::sanitize,
        load: deepseek_v3::load,
    },
    Family {
        name: "kimi_linear",
        model_types: &["kimi_linear"],
        sanitize: kimi_linear::sanitize,
        load: kimi_linear::load,
    },
    Family { name: "lfm2", model_types: &["lfm2", "lfm2_moe"], sanitize: lfm2::sanitize, load: lfm2::load },
    Family { name: "gpt_oss", model_types: &["gpt_oss"], sanitize: plain_names, load: gpt_oss::load },
];

/// Name and `model_type`s of every family.
pub fn families() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    FAMILIES.iter().map(|family| (family.name, family.model_types))
}

/// The family that config.json asks for.
///
/// # Errors
/// There is no `model_type`, or none of ours; the error lists those.
pub fn family(config: &Value) -> Result<&'static Family> {
    let found = config.get("model_type").and_then(Value::as_str);
    let found = found.ok_or_else(|| LoadError::Config("there is no model_type in it".into()))?;
    FAMILIES.iter().find(|family| family.model_types.contains(&found)).ok_or_else(|| {
        let supported: Vec<&str> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
        LoadError::UnknownModelType { found: found.into(), supported: supported.join(", ") }
    })
}

/// The part of config.json that describes the text model.
pub fn text_config(config: &Value) -> &Value {
    config.get("text_config").unwrap_or(config)
}

/// Names as they are, without the buffers that old checkpoints hold and every engine computes for itself.
fn plain_names(_: &Value, name: &str) -> Option<String> {
    (!name.ends_with("rotary_emb.inv_freq")).then(|| name.to_string())
}

/// The text model's names in checkpoints of models that also see: hub ones begin `model.language_model.`, MLX's
/// `language_model.model.`, text-only ones `model.`. Other parts are dropped.
fn text_names(name: &str) -> Option<String> {
    let others = ["visual.", "vision_tower.", "vision_model.", "vision_embedder.", "embed_vision."];
    let others = others.iter().chain(&["audio_tower.", "embed_audio.", "multi_modal_projector."]);
    let bare = name.strip_prefix("model.").unwrap_or(name);
    if others.into_iter().any(|prefix| bare.starts_with(prefix)) {
        return None;
    }
    let rest = name.strip_prefix("language_model.").unwrap_or(name);
    Some(match rest.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => rest.to_string(),
    })
}

/// Whether a tensor belongs to a layer behind the last one: a head that predicts tokens further ahead.
pub fn is_nextn_layer(config: &Value, name: &str) -> bool {
    let count = |key: &str| config.get(key).and_then(Value::as_u64).unwrap_or(0);
    let layers = count("num_hidden_layers");
    let ahead = layers..layers + count("num_nextn_predict_layers");
    let number = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    number.and_then(|n| n.parse().ok()).is_some_and(|n: u64| ahead.contains(&n))
}
