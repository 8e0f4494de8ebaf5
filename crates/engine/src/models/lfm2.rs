//! LFM2 and LFM2-VL: gated short convolutions, grouped-query attention in a few layers;
//! feed-forward blocks are dense or, in `lfm2_moe`, experts with a sigmoid router.
//!
//! Reference: transformers `lfm2`, `lfm2_moe`, `lfm2_vl`.

use mlx::Array;
use nn::{Activation, Linear, Residual, RopePairs, placed};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, ensure_supported, parse, parse_part},
    decoder::Decoder,
    layer::{FeedForward, Mixer, PreNorm},
    names::{plain_names, text_names},
    sigmoid_moe, vision,
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::{LoadError, Result},
    models::rope::RopeParameters,
    weights::{
        Rule,
        Transform::{self, Whole},
        Weights,
    },
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: Option<i32>,
    block_ff_dim: Option<i32>,
    block_auto_adjust_ff_dim: Option<bool>,
    block_multiple_of: Option<i32>,
    block_ffn_dim_multiplier: Option<f32>,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    layer_types: Option<Vec<String>>,
    full_attn_idxs: Option<Vec<usize>>,
    #[serde(rename = "conv_L_cache")]
    conv_l_cache: i32,
    #[serde(default)]
    conv_bias: bool,
    #[serde(skip)]
    moe: Option<MoeConfig>,
}

/// Keys of models with experts.
#[derive(Deserialize)]
struct MoeConfig {
    num_experts: i32,
    num_experts_per_tok: i32,
    moe_intermediate_size: i32,
    num_dense_layers: usize,
    norm_topk_prob: Option<bool>,
    use_expert_bias: Option<bool>,
    routed_scaling_factor: Option<f32>,
}

impl Config {
    fn is_attention(&self, layer: usize) -> Result<bool> {
        match (&self.layer_types, &self.full_attn_idxs) {
            (Some(types), _) => Ok(types.get(layer).is_some_and(|kind| kind == "full_attention")),
            (None, Some(layers)) => Ok(layers.contains(&layer)),
            (None, None) => {
                Err(LoadError::Config("there is neither layer_types nor full_attn_idxs in it".into()))
            }
        }
    }

    /// The intermediate size as given, or two thirds of it rounded up to a multiple.
    fn dense_size(&self) -> Result<i32> {
        let given = self.block_ff_dim.or(self.intermediate_size);
        let given = given.ok_or_else(|| LoadError::Config("there is no intermediate_size in it".into()))?;
        if self.moe.is_some() || !self.block_auto_adjust_ff_dim.unwrap_or(true) {
            return Ok(given);
        }
        let multiplier = f64::from(self.block_ffn_dim_multiplier.unwrap_or(1.0));
        let size = (multiplier * f64::from(2 * given / 3)) as i32;
        let multiple = self.block_multiple_of.unwrap_or(256).max(1);
        Ok((size + multiple - 1) / multiple * multiple)
    }
}

/// Renames to other families' names.
pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    if let Some(name) = vision::canonical(name) {
        return Some(name);
    }
    let same = [
        (".operator_norm.", ".input_layernorm."),
        (".ffn_norm.", ".post_attention_layernorm."),
        (".feed_forward.", ".mlp."),
        (".self_attn.out_proj.", ".self_attn.o_proj."),
        (".q_layernorm.", ".q_norm."),
        (".k_layernorm.", ".k_norm."),
        (".mlp.switch_mlp.", ".mlp.experts."),
        (".mlp.expert_bias", ".mlp.gate.e_score_correction_bias"),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
    ];
    let name = text_names(name)?;
    plain_names(config, &same.iter().fold(name, |name, (from, to)| name.replace(from, to)))
}

/// Only `lfm2_moe` has other names in MLX's layout.
pub(super) const LAYOUT: &[Rule] = &[
    moe_rule(".feed_forward.experts.#.w1.weight", &[(".feed_forward.switch_mlp.gate_proj.weight", Whole)]),
    moe_rule(".feed_forward.experts.#.w2.weight", &[(".feed_forward.switch_mlp.down_proj.weight", Whole)]),
    moe_rule(".feed_forward.experts.#.w3.weight", &[(".feed_forward.switch_mlp.up_proj.weight", Whole)]),
    moe_rule(".feed_forward.w1.weight", &[(".feed_forward.gate_proj.weight", Whole)]),
    moe_rule(".feed_forward.w2.weight", &[(".feed_forward.down_proj.weight", Whole)]),
    moe_rule(".feed_forward.w3.weight", &[(".feed_forward.up_proj.weight", Whole)]),
];

const fn moe_rule(from: &'static str, to: &'static [(&'static str, Transform)]) -> Rule {
    Rule::new(from, to).of(&["lfm2_moe"])
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c = Config { moe: parse_part(config, "num_experts")?, ..parse(config)? };
    for kind in c.layer_types.iter().flatten() {
        let known = ["conv", "full_attention"].contains(&kind.as_str());
        ensure_supported(known, format!("layer type `{kind}` is not supported"))?;
    }
    let head_dim = c.base.hidden_size / c.num_attention_heads;
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim,
        qkv_bias: false,
        o_bias: false,
    };
    let rope = RopeParameters::of(config, None)?.or(1e6, 1.0).rope(head_dim, RopePairs::Halves)?;
    let mut decoder = Decoder::load_with(&c.base, w, "embedding_norm", |i, w| {
        let mixer: Box<dyn Mixer> = match c.is_attention(i)? {
            true => {
                let attention = w.sub("self_attn");
                let mixer = Attention::load(heads, rope.clone(), &attention)?;
                Box::new(mixer.with_qk_norm(c.base.rms_norm_eps, &attention)?)
            }
            false => Box::new(ShortConv::load(&c, &w.sub("conv"))?),
        };
        PreNorm::load(&c.base, w, mixer, feed_forward(&c, i, &w.sub("mlp"))?)
    })?;
    decoder.tower = vision::load_tower(config, w, |vision, w| vision::load_siglip2(vision, config, w))?;
    Ok(Box::new(decoder))
}

fn feed_forward(c: &Config, layer: usize, w: &Weights) -> Result<Box<dyn FeedForward>> {
    let hidden = c.base.hidden_size;
    let Some(moe) = c.moe.as_ref().filter(|moe| layer >= moe.num_dense_layers) else {
        return Ok(Box::new(w.mlp(hidden, c.dense_size()?, Activation::Silu)?));
    };
    let config = sigmoid_moe::Config {
        experts: moe.num_experts,
        per_token: moe.num_experts_per_tok,
        intermediate: moe.moe_intermediate_size,
        shared: 0,
        normalize: moe.norm_topk_prob.unwrap_or(true),
        eps: 1e-6,
        scale: moe.routed_scaling_factor.unwrap_or(1.0),
        n_group: 1,
        topk_group: 1,
        bias: moe.use_expert_bias.unwrap_or(true),
    };
    Ok(Box::new(sigmoid_moe::load(&config, hidden, w)?))
}

/// `out_proj(C * conv(B * x))` for the three parts B, C, x of a projection.
struct ShortConv {
    in_proj: Linear,
    /// `[hidden_size, width]`.
    conv: Array,
    conv_bias: Option<Array>,
    out_proj: Linear,
    hidden: i32,
}

impl ShortConv {
    fn load(c: &Config, w: &Weights) -> Result<ShortConv> {
        let hidden = c.base.hidden_size;
        Ok(ShortConv {
            in_proj: w.linear_with("in_proj", 3 * hidden, hidden, c.conv_bias)?,
            conv: placed(w.conv1d("conv", hidden, c.conv_l_cache)?),
            conv_bias: match c.conv_bias {
                true => Some(placed(w.cast(w.float_tensor("conv.bias", &[hidden])?))),
                false => None,
            },
            out_proj: w.linear_with("out_proj", hidden, hidden, c.conv_bias)?,
            hidden,
        })
    }
}

impl Mixer for ShortConv {
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let [projected] = x.project([&self.in_proj]);
        let parts = projected.split(-1, &[self.hidden; 3]);
        let mixed = batch.causal_conv(layer, &(&parts[0] * &parts[2]), &self.conv);
        let mixed = match &self.conv_bias {
            Some(bias) => &mixed + bias.astype(mixed.dtype()),
            None => mixed,
        };
        x.add_projected(&self.out_proj, &(&parts[1] * mixed))
    }

    fn make_cache(&self) -> Cache {
        Cache::recurrent()
    }
}
