//! Llama 2 and 3, and the Mistral line that shares their layers: sliding windows, YaRN, and
//! position-scaled queries (Ministral 3).
//!
//! Reference: transformers `llama`, `mistral`, `ministral3`.

use mlx::{Array, Dtype};
use nn::{Activation, Residual, Rope, RopePairs, Softmax};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, AttentionConfig, Projections},
    config::{BaseConfig, check_activation, parse},
    decoder::Decoder,
    layer::{Mixer, PreNorm},
    names::{plain_names, text_names},
    vision,
};
use crate::{batch::Batch, cache::Cache, error::Result, models::rope::RopeParameters, weights::Weights};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: Option<i32>,
    head_dim: Option<i32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    vision::canonical(name).or_else(|| plain_names(config, &text_names(name)?))
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let rope = RopeParameters::of(config, None)?;
    let window = sliding_window(config);
    let mut decoder = Decoder::load(&c.base, w, |_, w| {
        let (hidden, mlp) = (c.base.hidden_size, w.sub("mlp"));
        let mixer = mixer(&c, &rope, window, &w.sub("self_attn"))?;
        let mlp = mlp.mlp_with(hidden, c.intermediate_size, Activation::Silu, c.mlp_bias)?;
        PreNorm::load(&c.base, w, mixer, Box::new(mlp))
    })?;
    decoder.tower = vision::load_tower(config, w, |vision, w| vision::load_pixtral(vision, config, w))?;
    Ok(Box::new(decoder))
}

/// Llama ignores the key; Mistral's first models left it out and meant 4096.
fn sliding_window(config: &Value) -> Option<i32> {
    let model_type = config.get("model_type").and_then(Value::as_str)?;
    match config.get("sliding_window") {
        _ if model_type == "llama" => None,
        None if model_type == "mistral" => Some(4096),
        window => window?.as_i64().map(|window| window as i32),
    }
}

/// The common attention, or with scaled queries if config.json has `llama_4_scaling_beta`.
fn mixer(c: &Config, rope: &RopeParameters, window: Option<i32>, w: &Weights) -> Result<Box<dyn Mixer>> {
    let num_heads = c.num_attention_heads;
    let config = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads,
        num_kv_heads: c.num_key_value_heads.unwrap_or(num_heads),
        head_dim: c.head_dim.unwrap_or(c.base.hidden_size / num_heads),
        qkv_bias: c.attention_bias,
        o_bias: c.attention_bias,
    };
    let scale = Llama4AttentionScale::of(rope);
    let rope = rope.rope(config.head_dim, RopePairs::Halves)?;
    Ok(match scale {
        None => Box::new(Attention::load(config, rope, w)?.with_window(window)),
        Some(attention_scale) => Box::new(ScaledQueryAttention {
            projections: Projections::load(config, w)?,
            config,
            rope,
            attention_scale,
            sliding_window: window,
            softmax: Softmax::scaled((config.head_dim as f32).powf(-0.5)),
        }),
    })
}

/// Attention whose queries are scaled by their position.
struct ScaledQueryAttention {
    projections: Projections,
    config: AttentionConfig,
    rope: Rope,
    attention_scale: Llama4AttentionScale,
    sliding_window: Option<i32>,
    softmax: Softmax,
}

impl Mixer for ScaledQueryAttention {
    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }

    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let Projections { q_proj, k_proj, v_proj, o_proj } = &self.projections;
        let AttentionConfig { num_heads, num_kv_heads, head_dim, .. } = self.config;
        let split = |x: &Array, heads| x.reshape(&[-1, heads, head_dim]);
        let [q, k, v] = x.project([q_proj, k_proj, v_proj]);
        let q = batch.rope(&split(&q, num_heads), &self.rope);
        let k = batch.rope(&split(&k, num_kv_heads), &self.rope);
        let q = self.attention_scale.apply(&q, batch);
        let out = batch.attend(layer, &q, &k, &split(&v, num_kv_heads), &self.softmax);
        x.add_projected(o_proj, &out.reshape(&[-1, num_heads * head_dim]))
    }
}

/// Scales queries by `1 + beta * ln(1 + floor(position / trained))`, for sharp attention in long
/// contexts.
struct Llama4AttentionScale {
    beta: f32,
    trained: f32,
}

impl Llama4AttentionScale {
    fn of(rope: &RopeParameters) -> Option<Llama4AttentionScale> {
        let (beta, trained) = (rope.llama_4_scaling_beta?, rope.original_max_position_embeddings?);
        Some(Llama4AttentionScale { beta, trained })
    }

    fn apply(&self, q: &Array, batch: &Batch) -> Array {
        let positions = batch.positions().astype(Dtype::Float32);
        let scale = ((positions / self.trained).floor() + 1.0).log() * self.beta + 1.0;
        q * scale.reshape(&[-1, 1, 1]).astype(q.dtype())
    }
}
