//! The action of `quantize` for each tensor, with the table of exceptions.

use mlx::{Dtype, quant::Quantization};

/// The action of `quantize` for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Quantises it.
    Quantize,
    /// Copies it unquantised, for this reason.
    Skip(&'static str),
}

/// Reasons and name patterns; the first match counts. A pattern is one or more dot-separated parts
/// of a name; `*` at either end of a part matches any text.
const SKIP: &[(&str, &[&str])] = &[
    ("vision or audio tower", &["visual", "vision_tower", "vision_model", "vision_embedder", "audio_tower"]),
    ("projector", &["multi_modal_projector", "embed_vision", "embed_audio"]),
    ("MTP head", &["mtp"]),
    ("norm", &["*norm*"]),
    ("convolution", &["*conv1d", "conv.conv", "*_conv.conv"]),
    ("recurrence", &["A_log", "dt_bias"]),
    ("router", &["mlp.gate", "block_sparse_moe.gate", "feed_forward.gate", "router", "shared_expert_gate"]),
    ("bias of the router", &["e_score_correction_bias", "expert_bias"]),
    ("attention sinks", &["sinks"]),
    ("scale", &["layer_scalar", "*_scale"]),
    ("bias", &["bias", "*_bias"]),
];

/// The action for a tensor.
pub(crate) fn action_for(name: &str, shape: &[usize], dtype: Dtype, q: Quantization) -> Action {
    let inputs = shape.last().copied().unwrap_or(0);
    if let Some(reason) = skip_reason(name) {
        return Action::Skip(reason);
    }
    if shape.len() < 2 || inputs == 0 || !dtype.is_float() || !name.ends_with(".weight") {
        return Action::Skip("not a matrix of weights");
    }
    if !inputs.is_multiple_of(q.group_size as usize) {
        return Action::Skip("not a whole number of groups");
    }
    Action::Quantize
}

/// Why a tensor of this name is not quantised.
fn skip_reason(name: &str) -> Option<&'static str> {
    let parts: Vec<&str> = name.split('.').collect();
    let line = SKIP.iter().find(|(_, patterns)| patterns.iter().any(|pattern| occurs(pattern, &parts)));
    line.map(|(reason, _)| *reason)
}

/// Whether consecutive parts of the name match the pattern's.
fn occurs(pattern: &str, parts: &[&str]) -> bool {
    let pattern: Vec<&str> = pattern.split('.').collect();
    parts
        .windows(pattern.len())
        .any(|run| pattern.iter().zip(run).all(|(pattern, part)| matches(pattern, part)))
}

fn matches(pattern: &str, part: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => part.contains(pattern.trim_matches('*')),
        (Some(end), None) => part.ends_with(end),
        (None, Some(start)) => part.starts_with(start),
        (None, None) => part == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: Option<&str>) {
        assert_eq!(skip_reason(name), expected, "{name}");
    }

    #[test]
    fn skip_reason_matches_the_table() {
        check("model.visual.blocks.0.attn.qkv.weight", Some("vision or audio tower"));
        check("vision_tower.encoder.layers.0.mlp.fc1.weight", Some("vision or audio tower"));
        check("model.vision_tower.patch_embedder.input_proj.weight", Some("vision or audio tower"));
        check("multi_modal_projector.mm_input_projection_weight", Some("projector"));
        check("model.embed_vision.embedding_projection.weight", Some("projector"));
        check("mtp.layers.0.self_attn.q_proj.weight", Some("MTP head"));
        check("model.layers.0.input_layernorm.weight", Some("norm"));
        check("model.language_model.layers.0.linear_attn.conv1d.weight", Some("convolution"));
        check("model.layers.0.conv.conv.weight", Some("convolution"));
        check("model.layers.0.self_attn.q_conv1d.weight", Some("convolution"));
        check("model.layers.0.self_attn.q_conv.conv.weight", Some("convolution"));
        check("model.layers.0.linear_attn.A_log", Some("recurrence"));
        check("model.layers.0.linear_attn.dt_bias", Some("recurrence"));
        check("model.layers.0.mlp.gate.weight", Some("router"));
        check("model.layers.0.mlp.gate.e_score_correction_bias", Some("router"));
        check("model.layers.0.mlp.shared_expert_gate.weight", Some("router"));
        check("model.layers.0.block_sparse_moe.gate.weight", Some("router"));
        check("model.layers.0.feed_forward.gate.weight", Some("router"));
        check("model.layers.0.router.proj.weight", Some("router"));
        check("model.layers.0.feed_forward.expert_bias", Some("bias of the router"));
        check("model.layers.0.self_attn.sinks", Some("attention sinks"));
        check("model.layers.0.mlp.experts.gate_proj.bias", Some("bias"));
    }

    #[test]
    fn skip_reason_of_matrices_is_none() {
        for name in [
            "model.embed_tokens.weight",
            "lm_head.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.embed_q.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.shared_expert.gate_proj.weight",
            "model.layers.0.mlp.switch_mlp.gate_proj.weight",
            "model.layers.0.conv.in_proj.weight",
            "model.layers.0.linear_attn.in_proj_a.weight",
            "model.layers.0.per_layer_input_gate.weight",
        ] {
            check(name, None);
        }
    }
}
