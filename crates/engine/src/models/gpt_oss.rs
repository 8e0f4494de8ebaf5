//! gpt-oss: attention with sinks, a sliding window in every other layer, experts in MXFP4.
//!
//! Reference: transformers `gpt_oss`.

use mlx::Array;
use nn::{Linear, Residual, RopePairs, Routing, Softmax, StackedLinear, top_k};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, check_activation, ensure_supported, parse, sliding_layers},
    decoder::Decoder,
    layer::{FeedForward, PreNorm},
};
use crate::{
    error::{LoadError, Result},
    models::rope::RopeParameters,
    weights::{Rule, Transform::*, Weights},
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    num_local_experts: i32,
    num_experts_per_tok: i32,
    sliding_window: i32,
    swiglu_limit: Option<f32>,
}

/// In the hub experts are in MXFP4 or transposed, and rows of gate and up alternate.
pub(super) const LAYOUT: &[Rule] = &[
    Rule::new(
        ".experts.gate_up_proj_blocks",
        &[(".experts.gate_proj.weight", AlternateWords(0)), (".experts.up_proj.weight", AlternateWords(1))],
    ),
    Rule::new(
        ".experts.gate_up_proj_scales",
        &[(".experts.gate_proj.scales", Alternate(0)), (".experts.up_proj.scales", Alternate(1))],
    ),
    Rule::new(".experts.down_proj_blocks", &[(".experts.down_proj.weight", Words)]),
    Rule::new(".experts.down_proj_scales", &[(".experts.down_proj.scales", Whole)]),
    Rule::new(
        ".experts.gate_up_proj",
        &[
            (".experts.gate_proj.weight", AlternateColumns(0)),
            (".experts.up_proj.weight", AlternateColumns(1)),
        ],
    ),
    Rule::new(
        ".experts.gate_up_proj_bias",
        &[(".experts.gate_proj.bias", Alternate(0)), (".experts.up_proj.bias", Alternate(1))],
    ),
    Rule::new(".experts.down_proj", &[(".experts.down_proj.weight", Transposed)]),
    Rule::new(".experts.down_proj_bias", &[(".experts.down_proj.bias", Whole)]),
];

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let unbiased = config.get("attention_bias") == Some(&Value::Bool(false));
    ensure_supported(!unbiased, "attention_bias must be true")?;
    // Even layers slide unless config.json lists the types.
    let slides = sliding_layers(config, c.base.num_hidden_layers, |layer| layer.is_multiple_of(2))?;
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim: c.head_dim,
        qkv_bias: true,
        o_bias: true,
    };
    let rope = RopeParameters::of(config, None)?.or(150_000.0, 1.0).rope(c.head_dim, RopePairs::Halves)?;
    Ok(Box::new(Decoder::load(&c.base, w, |i, w| {
        let attention = w.sub("self_attn");
        let sinks = Some(attention.float32("sinks", &[c.num_attention_heads])?);
        let softmax = Softmax { sinks, ..Softmax::scaled((c.head_dim as f32).powf(-0.5)) };
        let mixer = Attention::load(heads, rope.clone(), &attention)?
            .with_window(slides[i].then_some(c.sliding_window))
            .with_softmax(softmax);
        let mlp = GptOssMoe::load(&c, &w.sub("mlp"))?;
        PreNorm::load(&c.base, w, Box::new(mixer), Box::new(mlp))
    })?))
}

struct GptOssMoe {
    router: Linear,
    gate_proj: StackedLinear,
    up_proj: StackedLinear,
    down_proj: StackedLinear,
    per_token: i32,
    limit: f32,
}

impl GptOssMoe {
    fn load(c: &Config, w: &Weights) -> Result<GptOssMoe> {
        let (experts, hidden) = (c.num_local_experts, c.base.hidden_size);
        let size = c.intermediate_size;
        let stack = |name: &str, outputs, inputs| {
            let bias = w.float_tensor(&format!("experts.{name}.bias"), &[experts, outputs])?;
            Ok::<_, LoadError>(
                w.stacked(&format!("experts.{name}"), experts, outputs, inputs)?.with_bias(bias),
            )
        };
        Ok(GptOssMoe {
            router: w.router("router", experts, hidden, true)?,
            gate_proj: stack("gate_proj", size, hidden)?,
            up_proj: stack("up_proj", size, hidden)?,
            down_proj: stack("down_proj", hidden, size)?,
            per_token: c.num_experts_per_tok,
            limit: c.swiglu_limit.unwrap_or(7.0),
        })
    }
}

impl FeedForward for GptOssMoe {
    fn forward(&self, x: &Residual) -> Array {
        let normed = x.normed();
        let logits = self.router.forward(&normed).astype(mlx::Dtype::Float32);
        let experts = top_k(&logits, self.per_token);
        let weights = logits.take_along_axis(&experts, -1).softmax(-1);
        let routing = Routing { experts, weights };

        let rows = normed.reshape(&[normed.dim(0), 1, normed.dim(1)]);
        let limit = Array::scalar(self.limit, normed.dtype());
        let gate = self.gate_proj.forward(&rows, &routing.experts).minimum(&limit);
        let up = self.up_proj.forward(&rows, &routing.experts).minimum(&limit).maximum(&-&limit);
        let inner = &gate * (&gate * 1.702).sigmoid() * (up + 1.0);
        x.add(routing.combine(&self.down_proj.forward(&inner, &routing.experts)))
    }
}
