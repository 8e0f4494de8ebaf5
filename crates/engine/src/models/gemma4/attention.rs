//! Gemma 4's attention: each layer has its own head count and size, and its own or another layer's
//! KV.

use mlx::Array;
use nn::{Linear, RmsNorm, Rope, RopePairs, Softmax};
use serde::Deserialize;
use serde_json::Value;

use super::Config;
use crate::{
    batch::Batch,
    cache::Cache,
    error::{LoadError, Result},
    models::config::{ensure_supported, parse},
    models::rope::RopeParameters,
    weights::Weights,
};

pub(super) struct Gemma4Attention {
    q_proj: Linear,
    q_norm: RmsNorm,
    keys: KeyValueSource,
    o_proj: Linear,
    heads: i32,
    head_dim: i32,
    rope: Rope,
    sliding_window: Option<i32>,
    softmax: Softmax,
    /// Tokens of an image attend to all of it.
    images_together: bool,
}

/// Where a layer's keys and values come from.
enum KeyValueSource {
    Own {
        k_proj: Box<Linear>,
        /// Without it, values are the keys before their norm.
        v_proj: Option<Linear>,
        k_norm: RmsNorm,
        v_norm: RmsNorm,
        kv_heads: i32,
    },
    OfLayer(usize),
}

impl Gemma4Attention {
    pub(super) fn load(c: &Config, kind: LayerAttention, w: &Weights) -> Result<Gemma4Attention> {
        let (hidden, heads, eps) = (c.base.hidden_size, c.num_attention_heads, c.base.rms_norm_eps);
        let LayerAttention { head_dim, kv_heads, sliding_window, rope, source, images_together } = kind;
        let keys = match source {
            Some(layer) => {
                // Published files hold unused projections for these layers.
                for part in ["weight", "scales", "biases"] {
                    ["k_proj", "v_proj", "k_norm"].iter().for_each(|name| w.skip(&format!("{name}.{part}")));
                }
                KeyValueSource::OfLayer(layer)
            }
            None => KeyValueSource::Own {
                k_proj: Box::new(w.linear("k_proj", kv_heads * head_dim, hidden)?),
                v_proj: match c.attention_k_eq_v && sliding_window.is_none() {
                    true => None,
                    false => Some(w.linear("v_proj", kv_heads * head_dim, hidden)?),
                },
                k_norm: w.rms_norm("k_norm", head_dim, eps)?,
                v_norm: RmsNorm::plain(head_dim, eps),
                kv_heads,
            },
        };
        Ok(Gemma4Attention {
            q_proj: w.linear("q_proj", heads * head_dim, hidden)?,
            q_norm: w.rms_norm("q_norm", head_dim, eps)?,
            keys,
            o_proj: w.linear("o_proj", hidden, heads * head_dim)?,
            heads,
            head_dim,
            rope,
            sliding_window,
            softmax: Softmax::scaled(1.0),
            images_together,
        })
    }

    pub(super) fn forward(&self, x: &Array, layer: usize, batch: &mut Batch) -> Array {
        let split = |x: Array, heads| x.reshape(&[-1, heads, self.head_dim]);
        let q = batch.rope(&self.q_norm.forward(&split(self.q_proj.forward(x), self.heads)), &self.rope);
        let out = match &self.keys {
            KeyValueSource::Own { k_proj, v_proj, k_norm, v_norm, kv_heads } => {
                let k = split(k_proj.forward(x), *kv_heads);
                let v = v_proj.as_ref().map_or(k.clone(), |v_proj| split(v_proj.forward(x), *kv_heads));
                let k = batch.rope(&k_norm.forward(&k), &self.rope);
                let v = v_norm.forward(&v);
                match self.images_together {
                    true => batch.attend_images(layer, &q, &k, &v, &self.softmax),
                    false => batch.attend(layer, &q, &k, &v, &self.softmax),
                }
            }
            KeyValueSource::OfLayer(layer) if self.images_together => {
                batch.attend_images_over(*layer, &q, &self.softmax)
            }
            KeyValueSource::OfLayer(layer) => batch.attend_over(*layer, &q, &self.softmax),
        };
        self.o_proj.forward(&out.reshape(&[-1, self.heads * self.head_dim]))
    }

    /// `None` if it uses another layer's cache.
    pub(super) fn make_cache(&self) -> Option<Cache> {
        match self.keys {
            KeyValueSource::Own { .. } => Some(self.sliding_window.map_or_else(Cache::kv, Cache::window)),
            KeyValueSource::OfLayer(_) => None,
        }
    }
}

/// The settings of one layer's attention.
pub(super) struct LayerAttention {
    head_dim: i32,
    kv_heads: i32,
    sliding_window: Option<i32>,
    rope: Rope,
    /// The layer whose keys and values it uses, if not its own.
    pub source: Option<usize>,
    images_together: bool,
}

/// Keys that `per_layer_config` may override.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnHeads {
    head_dim: Option<i32>,
    num_key_value_heads: Option<i32>,
}

impl LayerAttention {
    /// The settings of layer `i`; `slides` lists which layers use a sliding window.
    pub(super) fn of(config: &Value, c: &Config, slides: &[bool], i: usize) -> Result<LayerAttention> {
        let own = match &c.per_layer_config {
            Some(layers) => layers.get(i.to_string()).map_or(Ok(OwnHeads::default()), parse)?,
            None if slides[i] => OwnHeads::default(),
            None => OwnHeads {
                head_dim: Some(c.global_head_dim),
                num_key_value_heads: c.num_global_key_value_heads.filter(|_| c.attention_k_eq_v),
            },
        };
        let heads = c.num_attention_heads;
        let kv_heads = own.num_key_value_heads.unwrap_or(c.num_key_value_heads);
        ensure_supported(
            heads % kv_heads == 0,
            format!("layer {i} has {heads} heads for {kv_heads} of keys and values; it must be a multiple"),
        )?;
        let head_dim = own.head_dim.unwrap_or(c.head_dim);
        Ok(LayerAttention {
            head_dim,
            kv_heads,
            sliding_window: slides[i].then_some(c.sliding_window),
            rope: rope(config, slides[i])?.rope(head_dim, RopePairs::Halves)?,
            source: source(c, slides, i)?,
            // In large models, and in layers with a window.
            images_together: slides[i] && config.get("use_bidirectional_attention") == Some(&"vision".into()),
        })
    }
}

/// A sharing layer uses the last layer of its kind that has keys and values of its own.
fn source(c: &Config, slides: &[bool], i: usize) -> Result<Option<usize>> {
    let own = slides.len().saturating_sub(c.num_kv_shared_layers);
    if i < own {
        return Ok(None);
    }
    let found = slides[..own].iter().rposition(|&slide| slide == slides[i]);
    let message = || format!("layer {i} shares keys and values, but no layer of its kind has any");
    found.map(Some).ok_or_else(|| LoadError::Config(message()))
}

/// RoPE of sliding or full layers; only the proportional kind is partial.
fn rope(config: &Value, slides: bool) -> Result<RopeParameters> {
    let kind = if slides { "sliding_attention" } else { "full_attention" };
    let found = config.get("rope_parameters").and_then(|all| all.get(kind)).filter(|found| found.is_object());
    let found = found.ok_or_else(|| LoadError::Config(format!("there are no rope_parameters for {kind}")))?;
    let rope = RopeParameters::of(config, Some(kind))?;
    let proportional = found.get("rope_type").is_some_and(|name| name == "proportional");
    Ok(if proportional { rope } else { rope.whole_head() })
}
