//! Qwen3.5 (text): three Gated DeltaNet layers to one gated full-attention layer.
//!
//! Reference: transformers `qwen3_5`; delta rule: Yang et al., "Gated Delta Networks" (2024).

use mlx::{Array, Dtype};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    batch::Batch,
    cache::Cache,
    error::{LoadError, Result},
    models::{Model, parse},
    nn::{Embedding, Linear, RmsNorm, rope_frequencies, swiglu},
    weights::Weights,
};

#[derive(Deserialize)]
pub struct Config {
    vocab_size: i32,
    hidden_size: i32,
    intermediate_size: i32,
    num_hidden_layers: usize,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    rms_norm_eps: f32,
    rope_parameters: Option<Rope>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
    #[serde(default)]
    tie_word_embeddings: bool,
    layer_types: Option<Vec<String>>,
    #[serde(default = "full_attention_interval")]
    full_attention_interval: usize,
    linear_num_key_heads: i32,
    linear_num_value_heads: i32,
    linear_key_head_dim: i32,
    linear_value_head_dim: i32,
    linear_conv_kernel_dim: i32,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    attn_output_gate: Option<bool>,
}

#[derive(Deserialize)]
struct Rope {
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f32>,
}

fn full_attention_interval() -> usize {
    4
}

impl Config {
    fn is_full_attention(&self, layer: usize) -> bool {
        match &self.layer_types {
            Some(types) => types.get(layer).is_some_and(|kind| kind == "full_attention"),
            None => (layer + 1).is_multiple_of(self.full_attention_interval),
        }
    }

    fn partial_rotary_factor(&self) -> f32 {
        let rope = self.rope_parameters.as_ref();
        rope.and_then(|r| r.partial_rotary_factor).or(self.partial_rotary_factor).unwrap_or(0.25)
    }

    fn rope_frequencies(&self) -> Vec<f32> {
        let theta =
            self.rope_parameters.as_ref().and_then(|r| r.rope_theta).or(self.rope_theta).unwrap_or(1e7);
        rope_frequencies((self.head_dim as f32 * self.partial_rotary_factor()) as i32, theta)
    }

    /// Refuses what this file does not compute, rather than computing something else.
    fn check(&self) -> Result<()> {
        self.check_sizes()?;
        let rope_type =
            self.rope_parameters.as_ref().and_then(|r| r.rope_type.as_deref()).unwrap_or("default");
        let factor = self.partial_rotary_factor();
        let layer_types = self.layer_types.as_deref().unwrap_or_default();
        let known = |kind: &String| kind == "full_attention" || kind == "linear_attention";
        let act = self.hidden_act.as_deref().unwrap_or("silu");
        let refused = [
            (rope_type != "default", format!("rope_type `{rope_type}` is not supported, only `default`")),
            (
                !(0.0..=1.0).contains(&factor),
                format!("partial_rotary_factor is {factor}; it must be between 0 and 1"),
            ),
            (act != "silu", format!("hidden_act `{act}` is not supported, only `silu`")),
            (self.attention_bias, "attention_bias is not supported".into()),
            (self.attn_output_gate == Some(false), "attn_output_gate must be true".into()),
            (
                !layer_types.iter().all(known),
                format!("layer_types are {layer_types:?}; one of them is unknown"),
            ),
        ];
        match refused.into_iter().find(|(refused, _)| *refused) {
            Some((_, message)) => Err(LoadError::Config(message)),
            None => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<()> {
        let positive = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("linear_num_key_heads", self.linear_num_key_heads),
            ("linear_key_head_dim", self.linear_key_head_dim),
            ("linear_value_head_dim", self.linear_value_head_dim),
            ("linear_conv_kernel_dim", self.linear_conv_kernel_dim),
        ];
        // The upper bound keeps products of two sizes within an array's axis.
        let most = |key: &str| if key == "vocab_size" { 1 << 24 } else { 1 << 17 };
        let outside = |(key, value): &(&str, i32)| !(1..=most(key)).contains(value);
        if let Some((key, value)) = positive.into_iter().find(outside) {
            return Err(LoadError::Config(format!(
                "{key} is {value}; it must be between 1 and {}",
                most(key)
            )));
        }
        let multiples = [
            (
                "num_attention_heads",
                self.num_attention_heads,
                "num_key_value_heads",
                self.num_key_value_heads,
            ),
            (
                "linear_num_value_heads",
                self.linear_num_value_heads,
                "linear_num_key_heads",
                self.linear_num_key_heads,
            ),
        ];
        for (key, value, of, divisor) in multiples {
            if !(1..=1 << 12).contains(&value) || value % divisor != 0 {
                return Err(LoadError::Config(format!(
                    "{key} is {value}; it must be a multiple of {of}, {divisor}"
                )));
            }
        }
        Ok(())
    }
}

/// Hub names begin `model.language_model.`, mlx-lm's `language_model.model.`, text-only ones `model.`.
pub fn sanitize(name: &str) -> Option<String> {
    let unused = ["model.visual.", "visual.", "vision_tower.", "mtp.", "language_model.mtp."];
    if unused.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    let rest = name.strip_prefix("language_model.").unwrap_or(name);
    Some(match rest.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => rest.to_string(),
    })
}

pub fn load(config: &Value, w: &Weights, dtype: Option<Dtype>) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    c.check()?;
    let m = w.sub("model");
    let offset = norm_offset(&c, &m)?;
    let embed_tokens = m.embedding("embed_tokens", c.vocab_size, c.hidden_size, dtype)?;
    let dtype = embed_tokens.forward(&Array::from_slice(&[0u32], &[1])).dtype();
    let layer = |i| Layer::load(&c, i, &m.sub("layers").sub(i), offset, dtype);
    Ok(Box::new(Qwen3_5 {
        layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
        norm: m.rms_norm("norm", c.hidden_size, c.rms_norm_eps, offset)?,
        lm_head: match c.tie_word_embeddings {
            true => None,
            false => Some(w.linear("lm_head", c.vocab_size, c.hidden_size)?),
        },
        embed_tokens,
        dtype,
        config: c,
    }))
}

/// Hub checkpoints store norm weights as `weight - 1`, MLX conversions as they are. The layout of the convolution
/// is the one sign that tells them apart: `[channels, 1, width]` in the hub, `[channels, width, 1]` in MLX.
fn norm_offset(c: &Config, m: &Weights) -> Result<f32> {
    let Some(layer) = (0..c.num_hidden_layers).find(|&i| !c.is_full_attention(i)) else { return Ok(1.0) };
    let conv = m.sub("layers").sub(layer).sub("linear_attn").shape("conv1d.weight")?;
    Ok(if conv.get(1) == Some(&1) { 1.0 } else { 0.0 })
}

struct Qwen3_5 {
    config: Config,
    dtype: Dtype,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Option<Linear>,
}

impl Model for Qwen3_5 {
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array {
        let mut h = self.embed_tokens.forward(tokens);
        for (i, layer) in self.layers.iter().enumerate() {
            h = layer.forward(&h, i, batch);
        }
        self.norm.forward(&h)
    }

    fn logits(&self, hidden: &Array) -> Array {
        match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => self.embed_tokens.as_linear(hidden),
        }
    }

    fn make_caches(&self) -> Vec<Cache> {
        let c = &self.config;
        let conv = [c.linear_conv_kernel_dim - 1, DeltaNet::channels(c)];
        let state = [1, c.linear_num_value_heads, c.linear_value_head_dim, c.linear_key_head_dim];
        let cache = |i| match c.is_full_attention(i) {
            true => Cache::kv(c.num_key_value_heads, c.head_dim, self.dtype),
            false => Cache::recurrent(&conv, self.dtype, &state),
        };
        (0..self.layers.len()).map(cache).collect()
    }
}

struct Layer {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

enum Mixer {
    FullAttention(Attention),
    LinearAttention(DeltaNet),
}

impl Layer {
    fn load(c: &Config, i: usize, w: &Weights, offset: f32, dtype: Dtype) -> Result<Layer> {
        let norm = |name| w.rms_norm(name, c.hidden_size, c.rms_norm_eps, offset);
        Ok(Layer {
            input_layernorm: norm("input_layernorm")?,
            mixer: match c.is_full_attention(i) {
                true => Mixer::FullAttention(Attention::load(c, &w.sub("self_attn"), offset)?),
                false => Mixer::LinearAttention(DeltaNet::load(c, &w.sub("linear_attn"), dtype)?),
            },
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: Mlp::load(c, &w.sub("mlp"))?,
        })
    }

    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array {
        let normed = self.input_layernorm.forward(x);
        let h = x + match &self.mixer {
            Mixer::FullAttention(attention) => attention.forward(&normed, i, batch),
            Mixer::LinearAttention(delta_net) => delta_net.forward(&normed, i, batch),
        };
        &h + self.mlp.forward(&self.post_attention_layernorm.forward(&h))
    }
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    rope: Vec<f32>,
}

impl Attention {
    fn load(c: &Config, w: &Weights, offset: f32) -> Result<Attention> {
        let (heads, kv_heads, head_dim) = (c.num_attention_heads, c.num_key_value_heads, c.head_dim);
        Ok(Attention {
            q_proj: w.linear("q_proj", 2 * heads * head_dim, c.hidden_size)?,
            k_proj: w.linear("k_proj", kv_heads * head_dim, c.hidden_size)?,
            v_proj: w.linear("v_proj", kv_heads * head_dim, c.hidden_size)?,
            o_proj: w.linear("o_proj", c.hidden_size, heads * head_dim)?,
            q_norm: w.rms_norm("q_norm", head_dim, c.rms_norm_eps, offset)?,
            k_norm: w.rms_norm("k_norm", head_dim, c.rms_norm_eps, offset)?,
            heads,
            kv_heads,
            head_dim,
            rope: c.rope_frequencies(),
        })
    }

    fn forward(&self, x: &Array, layer: usize, batch: &mut Batch) -> Array {
        let heads = |x: Array, heads| x.reshape(&[-1, heads, self.head_dim]);
        // Each head's query comes with a gate of its own behind it.
        let q_and_gate = self.q_proj.forward(x).reshape(&[-1, self.heads, 2 * self.head_dim]);
        let [q, gate] = halves(&q_and_gate);
        let q = batch.rope(&self.q_norm.forward(&q), &self.rope);
        let k = heads(self.k_proj.forward(x), self.kv_heads);
        let k = batch.rope(&self.k_norm.forward(&k), &self.rope);
        let v = heads(self.v_proj.forward(x), self.kv_heads);

        let scale = (self.head_dim as f32).powf(-0.5);
        let out = batch.attend(layer, &q, &k, &v, scale) * gate.sigmoid();
        self.o_proj.forward(&out.reshape(&[-1, self.heads * self.head_dim]))
    }
}

struct DeltaNet {
    in_proj_qkv: Linear,
    in_proj_z: Linear,
    in_proj_b: Linear,
    in_proj_a: Linear,
    /// `[channels, width]`.
    conv1d: Array,
    /// `-exp(A_log)`, float32.
    neg_exp_a: Array,
    /// Float32.
    dt_bias: Array,
    norm: RmsNorm,
    out_proj: Linear,
    key_heads: i32,
    value_heads: i32,
    key_dim: i32,
    value_dim: i32,
    /// L2 norm of each head, with the key's and the query's scale folded in.
    q_norm: RmsNorm,
    k_norm: RmsNorm,
}

impl DeltaNet {
    fn channels(c: &Config) -> i32 {
        2 * c.linear_num_key_heads * c.linear_key_head_dim
            + c.linear_num_value_heads * c.linear_value_head_dim
    }

    fn load(c: &Config, w: &Weights, dtype: Dtype) -> Result<DeltaNet> {
        let (key_dim, value_heads) = (c.linear_key_head_dim, c.linear_num_value_heads);
        let values = value_heads * c.linear_value_head_dim;
        let (channels, width) = (DeltaNet::channels(c), c.linear_conv_kernel_dim);
        let conv = match w.shape("conv1d.weight")?.get(1) {
            Some(1) => w.float_tensor("conv1d.weight", &[channels, 1, width])?,
            _ => w.float_tensor("conv1d.weight", &[channels, width, 1])?,
        };
        let per_head =
            |name| Ok::<_, LoadError>(w.float_tensor(name, &[value_heads])?.astype(Dtype::Float32));
        // x * rsqrt(sum(x²) + 1e-6) is an RMS norm whose weight is dim^-1/2 and whose eps is 1e-6 / dim.
        let l2_norm = |scale: f32| {
            let weight = scale * (key_dim as f32).powf(-0.5);
            RmsNorm::new(Array::full(&[key_dim], weight, Dtype::Float32), 1e-6 / key_dim as f32)
        };
        Ok(DeltaNet {
            in_proj_qkv: w.linear("in_proj_qkv", channels, c.hidden_size)?,
            in_proj_z: w.linear("in_proj_z", values, c.hidden_size)?,
            in_proj_b: w.linear("in_proj_b", value_heads, c.hidden_size)?,
            in_proj_a: w.linear("in_proj_a", value_heads, c.hidden_size)?,
            conv1d: conv.reshape(&[channels, width]).astype(dtype),
            neg_exp_a: -per_head("A_log")?.exp(),
            dt_bias: per_head("dt_bias")?,
            norm: w.rms_norm("norm", c.linear_value_head_dim, c.rms_norm_eps, 0.0)?,
            out_proj: w.linear("out_proj", c.hidden_size, values)?,
            key_heads: c.linear_num_key_heads,
            value_heads,
            key_dim,
            value_dim: c.linear_value_head_dim,
            q_norm: l2_norm((key_dim as f32).powf(-0.5)),
            k_norm: l2_norm(1.0),
        })
    }

    fn forward(&self, x: &Array, layer: usize, batch: &mut Batch) -> Array {
        let qkv = batch.causal_conv(layer, &self.in_proj_qkv.forward(x), &self.conv1d);
        let keys = self.key_heads * self.key_dim;
        let parts = qkv.split(-1, &[keys, keys, self.value_heads * self.value_dim]);
        let q = self.q_norm.forward(&parts[0].reshape(&[-1, self.key_heads, self.key_dim]));
        let k = self.k_norm.forward(&parts[1].reshape(&[-1, self.key_heads, self.key_dim]));
        let v = parts[2].reshape(&[-1, self.value_heads, self.value_dim]);

        let beta = self.in_proj_b.forward(x).sigmoid();
        let dt = self.in_proj_a.forward(x).astype(Dtype::Float32) + &self.dt_bias;
        let g = (dt.softplus() * &self.neg_exp_a).exp();
        let out = batch.gated_delta(layer, [&q, &k, &v], &g, &beta);

        let z = self.in_proj_z.forward(x).reshape(&[-1, self.value_heads, self.value_dim]);
        let out = swiglu(&z, &self.norm.forward(&out));
        self.out_proj.forward(&out.reshape(&[-1, self.value_heads * self.value_dim]))
    }
}

struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn load(c: &Config, w: &Weights) -> Result<Mlp> {
        Ok(Mlp {
            gate_proj: w.linear("gate_proj", c.intermediate_size, c.hidden_size)?,
            up_proj: w.linear("up_proj", c.intermediate_size, c.hidden_size)?,
            down_proj: w.linear("down_proj", c.hidden_size, c.intermediate_size)?,
        })
    }

    fn forward(&self, x: &Array) -> Array {
        self.down_proj.forward(&swiglu(&self.gate_proj.forward(x), &self.up_proj.forward(x)))
    }
}

fn halves(x: &Array) -> [Array; 2] {
    let half = x.dim(-1) / 2;
    [x.slice(-1, 0, half), x.slice(-1, half, 2 * half)]
}
