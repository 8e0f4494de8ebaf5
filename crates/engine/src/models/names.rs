//! Tensor names shared by several families, and the text part of config.json.

use serde_json::Value;

/// The part of config.json that describes the text model.
pub(crate) fn text_config(config: &Value) -> &Value {
    config.get("text_config").unwrap_or(config)
}

/// Names unchanged, without the RoPE buffers of old checkpoints. Embedding models are published
/// without their head, and then without the prefix `model.`.
pub(super) fn plain_names(_: &Value, name: &str) -> Option<String> {
    let is_bare = ["embed_tokens.", "layers.", "norm."].iter().any(|start| name.starts_with(start));
    let prefix = if is_bare { "model." } else { "" };
    (!name.ends_with("rotary_emb.inv_freq")).then(|| format!("{prefix}{name}"))
}

/// Strips the prefixes of multimodal checkpoints (`model.language_model.` in the hub,
/// `language_model.model.` in MLX) and drops the other modalities.
pub(super) fn text_names(name: &str) -> Option<String> {
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

/// Whether a tensor belongs to a layer past the last: a multi-token prediction head.
pub(crate) fn is_nextn_layer(config: &Value, name: &str) -> bool {
    let count = |key: &str| config.get(key).and_then(Value::as_u64).unwrap_or(0);
    let layers = count("num_hidden_layers");
    let ahead = layers..layers + count("num_nextn_predict_layers");
    let number = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    number.and_then(|n| n.parse().ok()).is_some_and(|n: u64| ahead.contains(&n))
}
