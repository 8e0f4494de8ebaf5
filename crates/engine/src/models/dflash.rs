//! DFlash, a block-diffusion draft model: it predicts a block of tokens in one pass from hidden
//! states of the target model.
//!
//! Reference: DFlash (Chen et al., 2026); keys and tensor names are those of z-lab's checkpoints.

use mlx::{Array, Dtype};
use nn::{Activation, Linear, Mlp, Residual, RmsNorm, Rope, RopePairs, Softmax};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Model,
    config::{BaseConfig, check_activation, ensure_supported, parse, sliding_layers},
};
use crate::{
    api::MAX_DEPTH,
    batch::{Batch, BatchRow},
    cache::Cache,
    error::{LoadError, Result},
    models::rope::RopeParameters,
    weights::Weights,
};

pub(crate) struct DFlash {
    /// Tokens of a block: the last known one, and those to predict.
    pub size: usize,
    /// Layers of the target model whose outputs it reads, in order.
    pub target_layers: Vec<usize>,
    pub hidden_size: i32,
    mask_token: u32,
    /// Projects the concatenated outputs of the target layers: `[hidden_size, layers *
    /// hidden_size]`.
    fc: Linear,
    hidden_norm: RmsNorm,
    layers: Vec<DFlashLayer>,
    norm: RmsNorm,
}

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    #[serde(default)]
    attention_bias: bool,
    sliding_window: Option<i32>,
    /// Absent: layers with a window are causal, the others are not.
    is_causal: Option<bool>,
    num_target_layers: Option<usize>,
}

/// Keys of `dflash_config`, which older files have at the top level.
#[derive(Deserialize)]
struct DFlashConfig {
    block_size: usize,
    mask_token_id: u32,
    target_layer_ids: Vec<usize>,
    input_embedding_scale: Option<f32>,
    output_multiplier: Option<f32>,
    final_logit_softcapping: Option<f32>,
}

/// Whether config.json is a DFlash model's.
pub(crate) fn is_dflash(config: &Value) -> bool {
    architecture(config).starts_with("DFlash") || config.get("dflash_config").is_some()
}

fn architecture(config: &Value) -> &str {
    config.get("architectures").and_then(|all| all.get(0)).and_then(Value::as_str).unwrap_or_default()
}

impl DFlash {
    /// Loads a checkpoint that drafts for `target`, whose `hidden_size` is given.
    ///
    /// # Errors
    /// It drafts for another model, or uses an unsupported feature.
    pub(crate) fn load(config: &Value, w: &Weights, target: &dyn Model, hidden_size: i32) -> Result<DFlash> {
        let (c, dflash): (Config, DFlashConfig) = (parse(config)?, dflash(config)?);
        check(config, &c, &dflash)?;
        check_target(&c, &dflash, target, hidden_size)?;
        let (hidden, eps) = (c.base.hidden_size, c.base.rms_norm_eps);
        let rope = RopeParameters::of(config, None)?.whole_head().rope(c.head_dim, RopePairs::Halves)?;
        let slides = sliding_layers(config, c.base.num_hidden_layers, |_| false)?;
        let layers = w.sub("layers");
        let layer = |(i, slides): (usize, bool)| DFlashLayer::load(&c, slides, rope.clone(), &layers.sub(i));
        Ok(DFlash {
            size: dflash.block_size,
            hidden_size: hidden,
            mask_token: dflash.mask_token_id,
            fc: w.linear("fc", hidden, hidden * dflash.target_layer_ids.len() as i32)?,
            target_layers: dflash.target_layer_ids,
            hidden_norm: w.rms_norm("hidden_norm", hidden, eps)?,
            layers: slides.into_iter().enumerate().map(layer).collect::<Result<_>>()?,
            norm: w.rms_norm("norm", hidden, eps)?,
        })
    }

    /// Empty caches for a new sequence.
    pub(crate) fn make_caches(&self) -> Vec<Cache> {
        self.layers.iter().map(DFlashLayer::make_cache).collect()
    }

    /// Caches after one token, to see their shapes.
    pub(crate) fn caches_of_one_token(&self) -> Vec<Cache> {
        let mut caches = self.make_caches();
        let hidden = Array::zeros(&[1, self.hidden_size], Dtype::Float32);
        let row = BatchRow { num_tokens: 1, num_draft: 0, num_computed: 0, caches: &mut caches };
        self.observe(&vec![hidden; self.target_layers.len()], &mut Batch::new([row]));
        caches
    }

    /// Appends keys and values of the target's hidden states, `[n, hidden_size]` for each target
    /// layer in order. The batch's rows have these [caches](DFlash::make_caches) and are at the
    /// tokens' positions.
    #[track_caller]
    pub(crate) fn observe(&self, hidden: &[Array], batch: &mut Batch) {
        let context = self.hidden_norm.forward(&self.fc.forward(&Array::concatenate(hidden, -1)));
        for (i, layer) in self.layers.iter().enumerate() {
            let [k, v] = layer.keys_and_values(&context, batch);
            batch.append(i, &k, &v);
        }
    }

    /// Each row's last token, which is not observed yet, followed by mask tokens: token ids `[rows
    /// * size]` (uint32).
    pub(crate) fn tokens(&self, last: &[u32]) -> Array {
        let block = |&token: &u32| [vec![token], vec![self.mask_token; self.size - 1]].concat();
        let tokens: Vec<u32> = last.iter().flat_map(block).collect();
        Array::from_slice(&tokens, &[tokens.len() as i32])
    }

    /// Embeddings `[rows * size, hidden_size]` of [tokens](DFlash::tokens) to hidden states of the
    /// same shape. The target's head gives logits for the token at each position itself. The
    /// block's keys and values stay in the caches, after the observed ones.
    #[track_caller]
    pub(crate) fn forward(&self, embedded: Array, batch: &mut Batch) -> Array {
        let through = |x: Array, (i, layer): (usize, &DFlashLayer)| layer.forward(&x, i, batch);
        self.norm.forward(&self.layers.iter().enumerate().fold(embedded, through))
    }
}

fn dflash(config: &Value) -> Result<DFlashConfig> {
    let mut all = json!({ "block_size": 16 });
    let keys =
        ["block_size", "mask_token_id", "target_layer_ids", "input_embedding_scale", "output_multiplier"];
    for key in keys.into_iter().chain(["final_logit_softcapping"]) {
        let nested = config.get("dflash_config").and_then(|nested| nested.get(key));
        if let Some(value) = nested.or(config.get(key)) {
            all[key] = value.clone();
        }
    }
    serde_json::from_value(all).map_err(|e| LoadError::Config(format!("dflash_config: {e}")))
}

fn check(config: &Value, c: &Config, dflash: &DFlashConfig) -> Result<()> {
    check_activation(config, "hidden_act", "silu")?;
    let slides = sliding_layers(config, c.base.num_hidden_layers, |_| false)?.contains(&true);
    let (size, name) = (dflash.block_size, architecture(config));
    ensure_supported(
        name == "DFlashDraftModel",
        format!("architecture `{name}` is not supported, only `DFlashDraftModel`"),
    )?;
    ensure_supported(
        (2..=MAX_DEPTH + 1).contains(&size),
        format!("block_size is {size}; it must be between 2 and {}", MAX_DEPTH + 1),
    )?;
    ensure_supported(!dflash.target_layer_ids.is_empty(), "target_layer_ids is empty")?;
    ensure_supported(
        !slides || c.sliding_window.is_some(),
        "there is no sliding_window for its sliding layers",
    )?;
    ensure_supported(
        !slides || c.is_causal != Some(false),
        "bidirectional sliding-window layers are not supported",
    )?;
    let neutral = [
        ("input_embedding_scale", dflash.input_embedding_scale, 1.0),
        ("output_multiplier", dflash.output_multiplier, 1.0),
        ("final_logit_softcapping", dflash.final_logit_softcapping, 0.0),
    ];
    neutral.into_iter().try_for_each(|(key, value, neutral)| {
        ensure_supported(value.is_none_or(|value| value == neutral), format!("{key} is not supported"))
    })
}

/// Checks that the draft fits the target.
fn check_target(c: &Config, dflash: &DFlashConfig, target: &dyn Model, hidden_size: i32) -> Result<()> {
    let (own, vocab, layers) = (&c.base, target.vocab_size(), target.layers());
    let (ids, mask) = (&dflash.target_layer_ids, dflash.mask_token_id);
    ensure_supported(
        target.embedding().is_some(),
        "models of this family do not give their hidden states to block drafters",
    )?;
    ensure_supported(
        own.hidden_size == hidden_size,
        format!("hidden_size is {}, the model's is {hidden_size}", own.hidden_size),
    )?;
    ensure_supported(
        own.vocab_size as usize == vocab,
        format!("vocab_size is {}, the model's is {vocab}", own.vocab_size),
    )?;
    let known = c.num_target_layers.unwrap_or(layers);
    ensure_supported(known == layers, format!("num_target_layers is {known}, the model has {layers}"))?;
    ensure_supported(
        ids.iter().all(|&layer| layer < layers),
        format!("target_layer_ids are {ids:?}, the model has {layers} layers"),
    )?;
    ensure_supported(
        (mask as usize) < vocab,
        format!("mask_token_id is {mask}, the model has {vocab} tokens"),
    )
}

struct DFlashLayer {
    input_layernorm: RmsNorm,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    rope: Rope,
    softmax: Softmax,
    head_dim: i32,
    causal: bool,
    sliding_window: Option<i32>,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl DFlashLayer {
    fn load(c: &Config, slides: bool, rope: Rope, w: &Weights) -> Result<DFlashLayer> {
        let (hidden, eps, bias) = (c.base.hidden_size, c.base.rms_norm_eps, c.attention_bias);
        let a = w.sub("self_attn");
        let [q, kv] = [c.num_attention_heads, c.num_key_value_heads].map(|heads| heads * c.head_dim);
        Ok(DFlashLayer {
            input_layernorm: w.rms_norm("input_layernorm", hidden, eps)?,
            q_proj: a.linear_with("q_proj", q, hidden, bias)?,
            k_proj: a.linear_with("k_proj", kv, hidden, bias)?,
            v_proj: a.linear_with("v_proj", kv, hidden, bias)?,
            o_proj: a.linear_with("o_proj", hidden, q, bias)?,
            q_norm: a.rms_norm("q_norm", c.head_dim, eps)?,
            k_norm: a.rms_norm("k_norm", c.head_dim, eps)?,
            rope,
            softmax: Softmax::scaled((c.head_dim as f32).powf(-0.5)),
            head_dim: c.head_dim,
            causal: c.is_causal.unwrap_or(slides),
            sliding_window: c.sliding_window.filter(|_| slides),
            post_attention_layernorm: w.rms_norm("post_attention_layernorm", hidden, eps)?,
            mlp: w.sub("mlp").mlp(hidden, c.intermediate_size, Activation::Silu)?,
        })
    }

    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }

    /// Keys and values of the context `[n, hidden_size]`, which is normed already.
    fn keys_and_values(&self, context: &Array, batch: &Batch) -> [Array; 2] {
        let k = batch.rope(&self.k_norm.forward(&self.heads(self.k_proj.forward(context))), &self.rope);
        [k, self.heads(self.v_proj.forward(context))]
    }

    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array {
        let residual = Residual::new(x, &self.input_layernorm);
        let [q, k, v] = residual.project([&self.q_proj, &self.k_proj, &self.v_proj]).map(|x| self.heads(x));
        let q = batch.rope(&self.q_norm.forward(&q), &self.rope);
        let k = batch.rope(&self.k_norm.forward(&k), &self.rope);
        let out = match self.causal {
            true => batch.attend(i, &q, &k, &v, &self.softmax),
            false => batch.attend_all(i, &q, &k, &v, &self.softmax),
        };
        let h = residual.add_projected(&self.o_proj, &out.reshape(&[x.dim(0), -1]));
        self.mlp.add_to(&Residual::new(&h, &self.post_attention_layernorm))
    }

    fn heads(&self, x: Array) -> Array {
        x.reshape(&[x.dim(0), -1, self.head_dim])
    }
}
