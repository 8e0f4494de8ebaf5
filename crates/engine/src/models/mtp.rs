//! Multi-token prediction: one more layer, in some checkpoints, that predicts later tokens from
//! hidden states.
//!
//! Its inputs are hidden states after the final norm, or its own: see docs/adr/0015-mtp-head.md.
//! References: DeepSeek-V3 (2024); transformers `MtpLayer`; the names are Qwen's.

use std::rc::Rc;

use mlx::Array;
use nn::{Embedding, Linear, RmsNorm};
use serde_json::Value;

use super::{
    config::BaseConfig,
    layer::{Layer, PreNorm},
};
use crate::{batch::Batch, cache::Cache, error::Result, weights::Weights};

pub(crate) struct Mtp {
    /// Shared with the model.
    embed_tokens: Rc<Embedding>,
    pre_fc_norm_embedding: RmsNorm,
    pre_fc_norm_hidden: RmsNorm,
    /// A token's embedding and the hidden state before it, `[hidden_size, 2 * hidden_size]`.
    fc: Linear,
    layer: PreNorm,
    norm: RmsNorm,
}

impl Mtp {
    /// Reads `mtp.*`, if present; `layer` reads its layer.
    pub(crate) fn load(
        c: &BaseConfig,
        w: &Weights,
        embed_tokens: &Rc<Embedding>,
        layer: impl FnOnce(&Weights) -> Result<PreNorm>,
    ) -> Result<Option<Mtp>> {
        let w = w.sub("mtp");
        if !w.has("fc.weight") {
            return Ok(None);
        }
        let hidden = c.hidden_size;
        let norm = |name| w.rms_norm(name, hidden, c.rms_norm_eps);
        Ok(Some(Mtp {
            embed_tokens: embed_tokens.clone(),
            pre_fc_norm_embedding: norm("pre_fc_norm_embedding")?,
            pre_fc_norm_hidden: norm("pre_fc_norm_hidden")?,
            fc: w.linear("fc", hidden, 2 * hidden)?,
            layer: layer(&w.sub("layers").sub(0))?,
            norm: norm("norm")?,
        }))
    }

    /// Hidden states `[n, hidden_size]` of the model, or its own from an earlier call, and the
    /// tokens `[n]` (uint32) that follow their positions, to hidden states `[n, hidden_size]`: from
    /// them the model's head computes the logits of the tokens after those. The batch's rows have
    /// only this [cache](Mtp::make_caches) and are at the hidden states' positions.
    #[track_caller]
    pub(crate) fn forward(&self, hidden: &Array, tokens: &Array, batch: &mut Batch) -> Array {
        self.norm.forward(&self.layer.forward(&self.joined(hidden, tokens), 0, batch))
    }

    /// Only updates the cache, for positions whose output is not needed.
    #[track_caller]
    pub(crate) fn observe(&self, hidden: &Array, tokens: &Array, batch: &mut Batch) {
        self.layer.observe(&self.joined(hidden, tokens), 0, batch);
    }

    fn joined(&self, hidden: &Array, tokens: &Array) -> Array {
        let embedded = self.pre_fc_norm_embedding.forward(&self.embed_tokens.forward(tokens));
        let hidden = self.pre_fc_norm_hidden.forward(hidden);
        self.fc.forward(&Array::concatenate([&embedded, &hidden], -1))
    }

    /// Embeddings `[n, hidden_size]` of tokens `[n]`, in the dtype of hidden states.
    pub(crate) fn embedded(&self, tokens: &Array) -> Array {
        self.embed_tokens.forward(tokens)
    }

    /// Empty caches for a new sequence.
    pub(crate) fn make_caches(&self) -> Vec<Cache> {
        vec![self.layer.make_cache()]
    }
}

/// Whether the text part of config.json describes a supported head: one layer with the model's
/// embedding. Others are dropped.
pub(super) fn is_supported(config: &Value) -> bool {
    let layers = ["mtp_num_hidden_layers", "num_nextn_predict_layers"];
    let layers = layers.iter().filter_map(|key| config.get(*key)?.as_u64()).max();
    let dedicated = config.get("mtp_use_dedicated_embeddings") == Some(&Value::Bool(true));
    layers.is_none_or(|layers| layers <= 1) && !dedicated
}

/// Qwen's name of a tensor of the nextn layer in DeepSeek's and GLM's checkpoints; `None` for
/// copies of embedding and output head, and for [unsupported](is_supported) heads.
pub(super) fn nextn_tensor_name(config: &Value, name: &str) -> Option<String> {
    if !is_supported(config) {
        return None;
    }
    let (_, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let names = [
        ("enorm.", "mtp.pre_fc_norm_embedding."),
        ("hnorm.", "mtp.pre_fc_norm_hidden."),
        ("eh_proj.", "mtp.fc."),
        ("shared_head.norm.", "mtp.norm."),
    ];
    if rest.starts_with("embed_tokens.") || rest.starts_with("shared_head.head.") {
        return None;
    }
    let known = names.iter().find_map(|(from, to)| Some(format!("{to}{}", rest.strip_prefix(from)?)));
    Some(known.unwrap_or_else(|| format!("mtp.layers.0.{rest}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nextn_tensor_gets_the_mtp_name() {
        let config = |layers: u64| json!({ "num_hidden_layers": 4, "num_nextn_predict_layers": layers });
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(nextn_tensor_name(&config(1), name).as_deref(), expected, "{name}");
        };
        check("model.layers.4.enorm.weight", Some("mtp.pre_fc_norm_embedding.weight"));
        check("model.layers.4.eh_proj.scales", Some("mtp.fc.scales"));
        check("model.layers.4.shared_head.norm.weight", Some("mtp.norm.weight"));
        check("model.layers.4.self_attn.o_proj.weight", Some("mtp.layers.0.self_attn.o_proj.weight"));
        check("model.layers.4.shared_head.head.weight", None);
        check("model.layers.4.embed_tokens.weight", None);
        assert_eq!(nextn_tensor_name(&config(2), "model.layers.4.eh_proj.weight"), None);
    }

    #[test]
    fn mtp_head_is_supported_with_one_layer_and_shared_embedding() {
        let check = |config: Value, expected| assert_eq!(is_supported(&config), expected, "{config}");
        check(json!({}), true);
        check(json!({ "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false }), true);
        check(json!({ "mtp_num_hidden_layers": 2 }), false);
        check(json!({ "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": true }), false);
    }
}
