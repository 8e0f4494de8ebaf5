//! Llama 2 and 3, and the Mistral line that shares its layers: sliding windows, YaRN, and queries that grow with the
//! position (Ministral 3).
//!
//! Reference: transformers `llama`, `mistral`, `ministral3`.

use mlx::{
    Array, Dtype, Softmax,
    fast::{Activation, Rope, RopePairs},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, Heads},
    config::{BaseConfig, check_activation, parse},
    decoder::Decoder,
    layer::{Mixer, PreNorm},
    names::{plain_names, text_names},
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Linear, Mlp, Residual, rope::RopeParameters},
    weights::Weights,
};

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

pub fn sanitize(config: &Value, name: &str) -> Option<String> {
    plain_names(config, &text_names(name)?)
}

pub fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let rope = RopeParameters::of(config, None)?;
    let window = sliding_window(config);
    Ok(Box::new(Decoder::load(&c.base, w, |_, w| {
        let (hidden, mlp) = (c.base.hidden_size, w.sub("mlp"));
        let mixer = mixer(&c, &rope, window, &w.sub("self_attn"))?;
        let mlp = Mlp::load_with(&mlp, hidden, c.intermediate_size, Activation::Silu, c.mlp_bias)?;
        PreNorm::load(&c.base, w, mixer, Box::new(mlp))
    })?))
}

/// Llama attends to everything, whatever its config.json says; Mistral's first models left the key out and meant 4096.
fn sliding_window(config: &Value) -> Option<i32> {
    let model_type = config.get("model_type").and_then(Value::as_str)?;
    match config.get("sliding_window") {
        _ if model_type == "llama" => None,
        None if model_type == "mistral" => Some(4096),
        window => window?.as_i64().map(|window| window as i32),
    }
}

/// The attention that most families have, unless queries grow.
fn mixer(c: &Config, rope: &RopeParameters, window: Option<i32>, w: &Weights) -> Result<Box<dyn Mixer>> {
    let heads = c.num_attention_heads;
    let size = Heads {
        hidden: c.base.hidden_size,
        heads,
        kv_heads: c.num_key_value_heads.unwrap_or(heads),
        head_dim: c.head_dim.unwrap_or(c.base.hidden_size / heads),
        qkv_bias: c.attention_bias,
        o_bias: c.attention_bias,
    };
    Ok(match Llama4AttentionScale::of(rope) {
        Some(scale) => Box::new(ScaledQueryAttention::load(size, rope, scale, window, w)?),
        None => {
            let rope = rope.rope(size.head_dim, RopePairs::Halves)?;
            Box::new(Attention::load(size, rope, w)?.with_window(window))
        }
    })
}

/// Attention whose queries grow with their position.
struct ScaledQueryAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    size: Heads,
    rope: Rope,
    attention_scale: Llama4AttentionScale,
    sliding_window: Option<i32>,
    softmax: Softmax,
}

impl ScaledQueryAttention {
    fn load(
        size: Heads,
        rope: &RopeParameters,
        attention_scale: Llama4AttentionScale,
        sliding_window: Option<i32>,
        w: &Weights,
    ) -> Result<ScaledQueryAttention> {
        let Heads { hidden, heads, kv_heads, head_dim, qkv_bias, o_bias } = size;
        Ok(ScaledQueryAttention {
            q_proj: w.linear_with("q_proj", heads * head_dim, hidden, qkv_bias)?,
            k_proj: w.linear_with("k_proj", kv_heads * head_dim, hidden, qkv_bias)?,
            v_proj: w.linear_with("v_proj", kv_heads * head_dim, hidden, qkv_bias)?,
            o_proj: w.linear_with("o_proj", hidden, heads * head_dim, o_bias)?,
            size,
            rope: rope.rope(head_dim, RopePairs::Halves)?,
            attention_scale,
            sliding_window,
            softmax: Softmax::scaled((head_dim as f32).powf(-0.5)),
        })
    }
}

impl Mixer for ScaledQueryAttention {
    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }

    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let [q, k, v] = x.project([&self.q_proj, &self.k_proj, &self.v_proj]);
        let Heads { heads, kv_heads, head_dim, .. } = self.size;
        let split = |x: &Array, heads| x.reshape(&[-1, heads, head_dim]);
        let q = batch.rope(&split(&q, heads), &self.rope);
        let k = batch.rope(&split(&k, kv_heads), &self.rope);
        let q = self.attention_scale.apply(&q, batch);
        let out = batch.attend(layer, &q, &k, &split(&v, kv_heads), &self.softmax);
        x.add_projected(&self.o_proj, &out.reshape(&[-1, heads * head_dim]))
    }
}

/// Queries times `1 + beta * ln(1 + floor(position / trained))`, so that attention stays sharp in long contexts.
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
