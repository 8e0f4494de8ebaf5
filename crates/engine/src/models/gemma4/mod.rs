//! Gemma 4: Gemma 3 with plain norm weights and unscaled scores. Full-attention layers have larger,
//! partly rotated heads; the last layers may share keys and values with earlier ones; small models
//! add per-layer inputs, sparse ones experts.
//!
//! Reference: transformers `gemma4`, `gemma4_unified`.

mod attention;
mod blocks;

use mlx::Array;
use nn::{Activation, Embedding, Mlp, RmsNorm};
use serde::Deserialize;
use serde_json::{Value, json};

use self::{
    attention::{Gemma4Attention, LayerAttention},
    blocks::{MoeConfig, ParallelMoe, PerLayerInput, PerLayerInputs},
};
use super::{
    Model, Tower,
    config::{BaseConfig, ensure_supported, parse, sliding_layers, with_defaults},
    decoder::{Head, run_layers},
    gemma2::check,
    names::{plain_names, text_names},
    vision,
};
use crate::{batch::Batch, cache::Cache, error::Result, weights::Weights};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    num_global_key_value_heads: Option<i32>,
    head_dim: i32,
    global_head_dim: i32,
    attention_k_eq_v: bool,
    sliding_window: i32,
    num_kv_shared_layers: usize,
    use_double_wide_mlp: bool,
    final_logit_softcapping: Option<f32>,
    /// 0 in models without per-layer inputs.
    hidden_size_per_layer_input: i32,
    vocab_size_per_layer_input: i32,
    enable_moe_block: bool,
    /// Overrides by layer number, in newer files instead of `global_head_dim`.
    per_layer_config: Option<Value>,
}

/// transformers' defaults of absent keys.
fn defaults(config: &Value) -> Value {
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let unified = model_type.starts_with("gemma4_unified");
    json!({
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": if unified { 262_144 } else { 131_072 },
        "tie_word_embeddings": true,
        "attention_k_eq_v": false,
        "sliding_window": if unified { 1024 } else { 512 },
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": false,
        "hidden_size_per_layer_input": if unified { 0 } else { 256 },
        "vocab_size_per_layer_input": 262_144,
        "enable_moe_block": false,
        "use_bidirectional_attention": unified.then_some("vision"),
        "rope_parameters": {
            "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0,
            },
        },
    })
}

/// MLX stacks experts under `switch_glu`.
pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    let text = || plain_names(config, &text_names(name)?.replace(".experts.switch_glu.", ".experts."));
    vision::canonical(name).or_else(text)
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let config = &with_defaults(config, defaults(config));
    let c: Config = parse(config)?;
    check(config)?;
    let (base, m) = (&c.base, w.sub("model"));
    let mut slides = sliding_layers(config, base.num_hidden_layers, |i| !(i + 1).is_multiple_of(6))?;
    // The last layer uses full attention regardless of its type.
    if let Some(last) = slides.last_mut() {
        *last = false;
    }
    let kinds =
        (0..slides.len()).map(|i| LayerAttention::of(config, &c, &slides, i)).collect::<Result<Vec<_>>>()?;
    let moe = if c.enable_moe_block { Some(parse::<MoeConfig>(config)?) } else { None };
    let (vocab, least) = (c.vocab_size_per_layer_input, base.vocab_size);
    ensure_supported(
        c.hidden_size_per_layer_input == 0 || vocab >= least,
        format!("vocab_size_per_layer_input is {vocab}; it must be at least vocab_size, {least}"),
    )?;
    let layers = m.sub("layers");
    let layers = kinds
        .into_iter()
        .enumerate()
        .map(|(i, kind)| Gemma4Layer::load(&c, kind, moe.as_ref(), &layers.sub(i)));
    let mut head = Head::load(base, w)?;
    head.softcap = c.final_logit_softcapping;
    Ok(Box::new(Gemma4 {
        embed_tokens: m.embedding("embed_tokens", base.vocab_size, base.hidden_size)?,
        embedding_scale: (base.hidden_size as f32).sqrt(),
        per_layer_inputs: match c.hidden_size_per_layer_input {
            0 => None,
            _ => Some(PerLayerInputs::load(&c, &m)?),
        },
        layers: layers.collect::<Result<_>>()?,
        norm: m.rms_norm("norm", base.hidden_size, base.rms_norm_eps)?,
        head,
        tower: vision::load_tower(config, w, |vision, w| match has_encoder(vision) {
            true => vision::load_gemma4(vision, w, base.hidden_size),
            false => vision::load_gemma4_unified(vision, w, base.hidden_size),
        })?,
        pad_token_id: config.get("pad_token_id").and_then(Value::as_u64).unwrap_or(0) as u32,
        vocab_size: base.vocab_size as usize,
        context_length: base.context_length(),
    }))
}

/// Whether images pass through layers of their own, given `vision_config`; in unified models they
/// do not.
fn has_encoder(vision: &Value) -> bool {
    let model_type = vision.get("model_type").and_then(Value::as_str).unwrap_or_default();
    !model_type.starts_with("gemma4_unified")
}

struct Gemma4 {
    embed_tokens: Embedding,
    embedding_scale: f32,
    per_layer_inputs: Option<PerLayerInputs>,
    layers: Vec<Gemma4Layer>,
    norm: RmsNorm,
    head: Head,
    tower: Option<Box<dyn Tower>>,
    /// Stands for images in per-layer inputs.
    pad_token_id: u32,
    vocab_size: usize,
    context_length: usize,
}

impl Model for Gemma4 {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        let h = batch.splice(self.embed_tokens.forward(tokens) * self.embedding_scale);
        let of_layers =
            |inputs: &PerLayerInputs| inputs.forward(&batch.with_images_as(tokens, self.pad_token_id), &h);
        let inputs = self.per_layer_inputs.as_ref().map_or(vec![], of_layers);
        let forward =
            |layer: &Gemma4Layer, h: &Array, i, batch: &mut Batch| layer.forward(h, i, &inputs, batch);
        self.norm.forward(&run_layers(&self.layers, h, batch, forward))
    }

    fn logits(&self, hidden: &Array) -> Array {
        self.head.forward(hidden, &self.embed_tokens)
    }

    /// The last layers share keys and values and need none.
    fn make_caches(&self) -> Vec<Cache> {
        self.layers.iter().filter_map(|layer| layer.self_attn.make_cache()).collect()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.tower.as_deref()
    }
}

struct Gemma4Layer {
    input_layernorm: RmsNorm,
    self_attn: Gemma4Attention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: Mlp,
    moe: Option<ParallelMoe>,
    post_feedforward_layernorm: RmsNorm,
    per_layer_input: Option<PerLayerInput>,
    layer_scalar: f32,
}

impl Gemma4Layer {
    fn load(c: &Config, kind: LayerAttention, moe: Option<&MoeConfig>, w: &Weights) -> Result<Gemma4Layer> {
        let hidden = c.base.hidden_size;
        let norm = |name| w.rms_norm(name, hidden, c.base.rms_norm_eps);
        let wide = c.use_double_wide_mlp && kind.source.is_some();
        let intermediate = c.intermediate_size * if wide { 2 } else { 1 };
        Ok(Gemma4Layer {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Gemma4Attention::load(c, kind, &w.sub("self_attn"))?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            mlp: w.sub("mlp").mlp(hidden, intermediate, Activation::GeluTanh)?,
            moe: moe.map(|moe| ParallelMoe::load(moe, &c.base, w)).transpose()?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            per_layer_input: match c.hidden_size_per_layer_input {
                0 => None,
                _ => Some(PerLayerInput::load(c, w)?),
            },
            layer_scalar: w.float32("layer_scalar", &[1])?.to_vec::<f32>()?[0],
        })
    }

    fn forward(&self, x: &Array, i: usize, inputs: &[Array], batch: &mut Batch) -> Array {
        let mixed = self.self_attn.forward(&self.input_layernorm.forward(x), i, batch);
        let h = x + self.post_attention_layernorm.forward(&mixed);
        let fed = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&h));
        let fed = match &self.moe {
            Some(moe) => moe.forward(&fed, &h),
            None => fed,
        };
        let h = &h + self.post_feedforward_layernorm.forward(&fed);
        let h = match &self.per_layer_input {
            Some(block) => block.forward(&h, &inputs[i]),
            None => h,
        };
        h * self.layer_scalar
    }
}
