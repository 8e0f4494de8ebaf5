//! Optional blocks of Gemma 4 layers: per-layer inputs and experts.
//!
//! Reference: transformers `gemma4`.

use std::f32::consts::FRAC_1_SQRT_2;

use mlx::Array;
use nn::{Activation, Embedding, Experts, Linear, RmsNorm, Router, Routing, gated};
use serde::Deserialize;

use super::Config;
use crate::{error::Result, models::config::BaseConfig, weights::Weights};

/// Per-layer inputs: a token embedding plus a projection of the model's input, for every layer.
pub(super) struct PerLayerInputs {
    embed_tokens_per_layer: Embedding,
    embedding_scale: f32,
    per_layer_model_projection: Linear,
    per_layer_projection_norm: RmsNorm,
    layers: i32,
    size: i32,
}

impl PerLayerInputs {
    pub(super) fn load(c: &Config, w: &Weights) -> Result<PerLayerInputs> {
        let (hidden, vocab) = (c.base.hidden_size, c.vocab_size_per_layer_input);
        let (layers, size) = (c.base.num_hidden_layers as i32, c.hidden_size_per_layer_input);
        // The projection is scaled by hidden^-0.5 before its norm: the same as a norm with a larger
        // eps.
        let eps = c.base.rms_norm_eps * hidden as f32;
        Ok(PerLayerInputs {
            embed_tokens_per_layer: w.embedding("embed_tokens_per_layer", vocab, layers * size)?,
            embedding_scale: (size as f32).sqrt(),
            per_layer_model_projection: w.linear("per_layer_model_projection", layers * size, hidden)?,
            per_layer_projection_norm: w.rms_norm("per_layer_projection_norm", size, eps)?,
            layers,
            size,
        })
    }

    /// Token ids `[tokens]` and the model's input `[tokens, hidden_size]` to `[tokens, size]` per
    /// layer.
    pub(super) fn forward(&self, tokens: &Array, x: &Array) -> Vec<Array> {
        let all = self.layers * self.size;
        let embedded = self.embed_tokens_per_layer.forward(tokens).astype(x.dtype()) * self.embedding_scale;
        let projected = self.per_layer_model_projection.forward(x).reshape(&[-1, self.layers, self.size]);
        let projected = self.per_layer_projection_norm.forward(&projected).reshape(&[-1, all]);
        let inputs = (embedded + projected) * FRAC_1_SQRT_2;
        (0..self.layers).map(|i| inputs.slice(-1, i * self.size, (i + 1) * self.size)).collect()
    }
}

/// Adds a layer's gated per-layer input to the residual stream.
pub(super) struct PerLayerInput {
    per_layer_input_gate: Linear,
    per_layer_projection: Linear,
    post_per_layer_input_norm: RmsNorm,
}

impl PerLayerInput {
    pub(super) fn load(c: &Config, w: &Weights) -> Result<PerLayerInput> {
        let (hidden, size) = (c.base.hidden_size, c.hidden_size_per_layer_input);
        Ok(PerLayerInput {
            per_layer_input_gate: w.linear("per_layer_input_gate", size, hidden)?,
            per_layer_projection: w.linear("per_layer_projection", hidden, size)?,
            post_per_layer_input_norm: w.rms_norm(
                "post_per_layer_input_norm",
                hidden,
                c.base.rms_norm_eps,
            )?,
        })
    }

    /// `h` `[tokens, hidden_size]` plus the layer's input `[tokens, size]`, projected.
    pub(super) fn forward(&self, h: &Array, input: &Array) -> Array {
        let inner = gated(&self.per_layer_input_gate.forward(h), input, Activation::GeluTanh);
        h + self.post_per_layer_input_norm.forward(&self.per_layer_projection.forward(&inner))
    }
}

/// Keys of models with experts.
#[derive(Deserialize)]
pub(super) struct MoeConfig {
    num_experts: i32,
    top_k_experts: i32,
    moe_intermediate_size: i32,
}

/// Experts in parallel with a dense block; each has norms of its own.
pub(super) struct ParallelMoe {
    router: Router,
    /// Without a stored weight, but with the router's scale.
    router_norm: RmsNorm,
    router_proj: Linear,
    per_expert_scale: Array,
    experts: Experts,
    pre_feedforward_layernorm_2: RmsNorm,
    post_feedforward_layernorm_1: RmsNorm,
    post_feedforward_layernorm_2: RmsNorm,
}

impl ParallelMoe {
    pub(super) fn load(c: &MoeConfig, base: &BaseConfig, w: &Weights) -> Result<ParallelMoe> {
        let (hidden, eps, experts) = (base.hidden_size, base.rms_norm_eps, c.num_experts);
        let norm = |name| w.rms_norm(name, hidden, eps);
        let scale = w.float32("router.scale", &[hidden])? * (hidden as f32).powf(-0.5);
        Ok(ParallelMoe {
            router: Router::softmax(c.top_k_experts, true),
            router_norm: RmsNorm::new(scale, eps),
            router_proj: w.router("router.proj", experts, hidden, false)?,
            per_expert_scale: w.float32("router.per_expert_scale", &[experts])?,
            experts: w.experts(experts, hidden, c.moe_intermediate_size, Activation::GeluTanh)?,
            pre_feedforward_layernorm_2: norm("pre_feedforward_layernorm_2")?,
            post_feedforward_layernorm_1: norm("post_feedforward_layernorm_1")?,
            post_feedforward_layernorm_2: norm("post_feedforward_layernorm_2")?,
        })
    }

    /// The experts' output on the residual stream `h`, added to the dense block's output; both
    /// normed.
    pub(super) fn forward(&self, dense: &Array, h: &Array) -> Array {
        let logits = self.router_proj.forward(&self.router_norm.forward(h));
        let Routing { experts, weights } = self.router.route(&logits);
        let weights = weights * self.per_expert_scale.take(&experts, 0);
        let sparse =
            self.experts.forward(&self.pre_feedforward_layernorm_2.forward(h), &Routing { experts, weights });
        self.post_feedforward_layernorm_1.forward(dense) + self.post_feedforward_layernorm_2.forward(&sparse)
    }
}
