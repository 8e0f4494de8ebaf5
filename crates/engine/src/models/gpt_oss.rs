//! gpt-oss: attention with sinks, every other layer in a sliding window, and experts published in MXFP4.
//!
//! Reference: transformers `gpt_oss`.

use mlx::{
    Array, Softmax,
    fast::{RopePairs, top_k},
    quant::{Mode, Quantized},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, Heads},
    config::{BaseConfig, check_activation, ensure_supported, parse, sliding_layers},
    decoder::Decoder,
    layer::{FeedForward, PreNorm},
};
use crate::{
    error::Result,
    nn::{Linear, Matrix, Residual, Routing, Stack, rope::RopeParameters},
    weights::Weights,
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

pub fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let unbiased = config.get("attention_bias") == Some(&Value::Bool(false));
    ensure_supported([(unbiased, "attention_bias must be true".into())])?;
    // Even layers slide unless config.json lists the types.
    let slides = sliding_layers(config, c.base.num_hidden_layers, |layer| layer.is_multiple_of(2))?;
    let heads = Heads {
        hidden: c.base.hidden_size,
        heads: c.num_attention_heads,
        kv_heads: c.num_key_value_heads,
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
        let mlp = SparseMoe::load(&c, &w.sub("mlp"))?;
        PreNorm::load(&c.base, w, Box::new(mixer), Box::new(mlp))
    })?))
}

struct SparseMoe {
    router: Linear,
    gate_proj: Stack,
    up_proj: Stack,
    down_proj: Stack,
    per_token: i32,
    limit: f32,
}

impl SparseMoe {
    fn load(c: &Config, w: &Weights) -> Result<SparseMoe> {
        let (experts, hidden) = (c.num_local_experts, c.base.hidden_size);
        let [gate_proj, up_proj, down_proj] = load_experts(c, &w.sub("experts"))?;
        Ok(SparseMoe {
            router: w.router("router", experts, hidden, true)?,
            gate_proj,
            up_proj,
            down_proj,
            per_token: c.num_experts_per_tok,
            limit: c.swiglu_limit.unwrap_or(7.0),
        })
    }
}

impl FeedForward for SparseMoe {
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

/// Gate, up and down projections: as MLX's conversions hold them, or from the hub's, in MXFP4 or dense, where the rows
/// of gate and up alternate.
fn load_experts(c: &Config, w: &Weights) -> Result<[Stack; 3]> {
    let (experts, hidden, size) = (c.num_local_experts, c.base.hidden_size, c.intermediate_size);
    if w.has("gate_proj.weight") {
        let stack = |name, outputs, inputs| {
            let bias = w.float_tensor(&format!("{name}.bias"), &[experts, outputs])?;
            Ok::<_, crate::LoadError>(w.stacked(name, experts, outputs, inputs)?.with_bias(bias))
        };
        return Ok([
            stack("gate_proj", size, hidden)?,
            stack("up_proj", size, hidden)?,
            stack("down_proj", hidden, size)?,
        ]);
    }
    let both = hub_matrix(w, "gate_up_proj", experts, 2 * size, hidden)?;
    let bias = w.float_tensor("gate_up_proj_bias", &[experts, 2 * size])?;
    let half = |i| {
        Ok::<_, crate::LoadError>(every_other(w, &both, i)?.with_bias(w.materialized(alternate(&bias, i))?))
    };
    let down = hub_matrix(w, "down_proj", experts, hidden, size)?;
    let down_bias = w.float_tensor("down_proj_bias", &[experts, hidden])?;
    Ok([half(0)?, half(1)?, Stack::new(down).with_bias(down_bias)])
}

fn hub_matrix(w: &Weights, name: &str, experts: i32, outputs: i32, inputs: i32) -> Result<Matrix> {
    let blocks = format!("{name}_blocks");
    if !w.has(&blocks) {
        // Dense ones are stored transposed.
        let dense = w.float_tensor(name, &[experts, inputs, outputs])?;
        return Ok(Matrix::Dense(w.materialized(w.cast(dense).transpose(&[0, 2, 1]).contiguous())?));
    }
    let quantization = Mode::Mxfp4.fixed().unwrap_or_else(|| unreachable!("MXFP4 has one group size"));
    let codes =
        w.words(&blocks, &[experts, outputs, inputs / 32, 16])?.reshape(&[experts, outputs, inputs / 8]);
    let scales = w.tensor(&format!("{name}_scales"), &[experts, outputs, inputs / 32])?;
    Ok(Matrix::Quantized(Quantized { codes, scales, biases: None, quantization }))
}

/// Rows `i`, `i + 2`, `i + 4`... of each matrix of a stack.
fn every_other(w: &Weights, stack: &Matrix, i: i32) -> Result<Stack> {
    Ok(Stack::new(match stack {
        Matrix::Dense(weight) => Matrix::Dense(w.materialized(alternate(weight, i))?),
        Matrix::Quantized(all) => Matrix::Quantized(Quantized {
            codes: w.materialized(alternate(&all.codes, i))?,
            scales: w.materialized(alternate(&all.scales, i))?,
            ..all.clone()
        }),
    }))
}

/// Elements `i`, `i + 2`... along axis 1.
fn alternate(x: &Array, i: i32) -> Array {
    let rest = &x.shape()[2..];
    let pairs = x.reshape(&[&[x.dim(0), x.dim(1) / 2, 2], rest].concat());
    pairs.slice(2, i, i + 1).reshape(&[&[x.dim(0), x.dim(1) / 2], rest].concat()).contiguous()
}
