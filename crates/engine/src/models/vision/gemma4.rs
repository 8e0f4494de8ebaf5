//! The tower of Gemma 4: a transformer with Gemma's blocks, learned positions of columns and rows,
//! and rotary ones; squares of patches are averaged.
//!
//! Reference: transformers `gemma4`.

use mlx::{Array, Dtype};
use nn::{Activation, CoreAttention, Linear, RmsNorm, Rope, RopePairs, Softmax, gated};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Tower, check_sizes};
use crate::{
    api::{Image, ImageTensor},
    error::Result,
    models::config::{check_activation, ensure_supported, parse, with_defaults},
    weights::Weights,
};

const CHANNELS: i32 = 3;

#[derive(Deserialize)]
struct Config {
    hidden_size: i32,
    intermediate_size: i32,
    num_hidden_layers: usize,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    patch_size: i32,
    pooling_kernel_size: i32,
    position_embedding_size: i32,
    rms_norm_eps: f32,
    use_clipped_linears: bool,
    standardize: bool,
}

/// transformers' defaults of absent keys.
fn defaults() -> Value {
    json!({
        "rms_norm_eps": 1e-6,
        "use_clipped_linears": false,
        "standardize": false,
        "pooling_kernel_size": 3,
        "position_embedding_size": 10_240,
    })
}

/// Loads the tower `visual.*` of a text model of `hidden_size`.
pub(in crate::models) fn load(config: &Value, w: &Weights, hidden_size: i32) -> Result<Box<dyn Tower>> {
    let c: Config = parse(&with_defaults(config, defaults()))?;
    check_activation(config, "hidden_activation", "gelu_pytorch_tanh")?;
    check_sizes([
        ("vision_config's patch_size", c.patch_size, 256),
        ("vision_config's pooling_kernel_size", c.pooling_kernel_size, 16),
        ("vision_config's position_embedding_size", c.position_embedding_size, 1 << 17),
    ])?;
    ensure_supported(c.head_dim % 4 == 0, "vision_config's head_dim is no multiple of 4")?;
    let hidden = c.hidden_size;
    let (embedder, layers) = (w.sub("patch_embedder"), w.sub("encoder").sub("layers"));
    let table = embedder.float32("position_embedding_table", &[2, c.position_embedding_size, hidden])?;
    let standard = |name| c.standardize.then(|| w.float32(name, &[hidden])).transpose();
    Ok(Box::new(Gemma4Tower {
        input_proj: embedder.linear("input_proj", hidden, CHANNELS * c.patch_size * c.patch_size)?,
        // A table for columns, and one for rows.
        tables: [0, 1].map(|axis| table.slice(0, axis, axis + 1).reshape(&[-1, hidden])),
        layers: (0..c.num_hidden_layers)
            .map(|i| Layer::load(&c, config, &layers.sub(i)))
            .collect::<Result<_>>()?,
        std_bias: standard("std_bias")?,
        std_scale: standard("std_scale")?,
        norm: RmsNorm::plain(hidden, c.rms_norm_eps),
        embedding_projection: w.sub("projector").linear("embedding_projection", hidden_size, hidden)?,
        // Never quantised.
        activations: embedder.activations("position_embedding_table")?,
        c,
    }))
}

struct Gemma4Tower {
    c: Config,
    input_proj: Linear,
    /// Float32 `[position_embedding_size, hidden_size]`.
    tables: [Array; 2],
    layers: Vec<Layer>,
    std_bias: Option<Array>,
    std_scale: Option<Array>,
    norm: RmsNorm,
    embedding_projection: Linear,
    activations: Dtype,
}

impl Tower for Gemma4Tower {
    fn forward(&self, image: &Image) -> Array {
        let tensor = &image.tensors[0];
        let (rows, columns, pool) = (tensor.rows as i32, tensor.columns as i32, self.c.pooling_kernel_size);
        let patches = Array::from_slice(&tensor.values, &[rows * columns, self.input_proj_inputs()]);
        let patches = (patches - 0.5) * 2.0;
        // Columns first, as the tables.
        let places: Vec<i32> = (0..rows).flat_map(|y| (0..columns).flat_map(move |x| [x, y])).collect();
        let positions = Array::from_slice(&places, &[rows * columns, 2]);
        let learned = [0, 1].map(|axis| {
            let own: Vec<u32> = places.iter().skip(axis).step_by(2).map(|&place| place as u32).collect();
            self.tables[axis].take(&Array::from_slice(&own, &[rows * columns]), 0)
        });
        let learned = (&learned[0] + &learned[1]).astype(self.activations);
        let mut h = self.input_proj.forward(&patches.astype(self.activations)) + learned;
        for layer in &self.layers {
            h = layer.forward(&h, &positions);
        }
        let [rows, columns] = [rows / pool, columns / pool];
        let squares = h.astype(Dtype::Float32).reshape(&[rows, pool, columns, pool, -1]);
        let sums = squares.sum(3, false).sum(1, false).reshape(&[rows * columns, -1]);
        let scale = (self.c.hidden_size as f32).sqrt() / (pool * pool) as f32;
        let mut pooled = sums * scale;
        if let (Some(bias), Some(scale)) = (&self.std_bias, &self.std_scale) {
            pooled = (pooled - bias) * scale;
        }
        self.embedding_projection.forward(&self.norm.forward(&pooled.astype(self.activations)))
    }

    fn check(&self, image: &Image) -> std::result::Result<(), String> {
        let [tensor] = &image.tensors[..] else {
            return Err(format!("it has {} tensors, and the model takes one", image.tensors.len()));
        };
        let (pool, values) = (self.c.pooling_kernel_size as usize, self.input_proj_inputs() as usize);
        let ImageTensor { rows, columns, .. } = *tensor;
        let most = self.c.position_embedding_size as usize;
        let sides = [rows, columns].iter().all(|&side| side > 0 && side <= most && side.is_multiple_of(pool));
        let patches = rows.checked_mul(columns).and_then(|patches| patches.checked_mul(values));
        if !sides || patches != Some(tensor.values.len()) {
            return Err(format!(
                "its tensor has {} values for {rows} x {columns} patches; the model takes {values} for each, and sides that \
                 are multiples of {pool}, at most {most}",
                tensor.values.len()
            ));
        }
        super::check_tokens(image, rows / pool * (columns / pool))
    }

    fn grid(&self, _: &Image) -> Option<[usize; 2]> {
        None
    }

    fn token_bytes(&self) -> usize {
        let c = &self.c;
        let patch = self.input_proj_inputs() + 12 * c.hidden_size + 3 * c.intermediate_size;
        (patch * c.pooling_kernel_size * c.pooling_kernel_size) as usize * size_of::<f32>()
    }
}

impl Gemma4Tower {
    fn input_proj_inputs(&self) -> i32 {
        CHANNELS * self.c.patch_size * self.c.patch_size
    }
}

/// A linear layer whose inputs and outputs may be clipped.
struct ClippedLinear {
    linear: Linear,
    /// Smallest and largest input, smallest and largest output, a scalar each.
    limits: Option<[Array; 4]>,
}

impl ClippedLinear {
    fn load(c: &Config, w: &Weights, outputs: i32, inputs: i32) -> Result<ClippedLinear> {
        let limit = |name| w.float_tensor(name, &[]);
        let limits = match c.use_clipped_linears {
            true => {
                let [input_min, input_max] = [limit("input_min")?, limit("input_max")?];
                Some([input_min, input_max, limit("output_min")?, limit("output_max")?])
            }
            false => None,
        };
        Ok(ClippedLinear { linear: w.linear("linear", outputs, inputs)?, limits })
    }

    fn forward(&self, x: &Array) -> Array {
        let Some([input_min, input_max, output_min, output_max]) = &self.limits else {
            return self.linear.forward(x);
        };
        let clip = |x: &Array, min: &Array, max: &Array| {
            x.maximum(&min.astype(x.dtype())).minimum(&max.astype(x.dtype()))
        };
        clip(&self.linear.forward(&clip(x, input_min, input_max)), output_min, output_max)
    }
}

struct Layer {
    /// Before and after attention, before and after the feed-forward block.
    norms: [RmsNorm; 4],
    q_proj: ClippedLinear,
    k_proj: ClippedLinear,
    v_proj: ClippedLinear,
    v_norm: RmsNorm,
    heads: CoreAttention,
    head_dim: i32,
    o_proj: ClippedLinear,
    gate_proj: ClippedLinear,
    up_proj: ClippedLinear,
    down_proj: ClippedLinear,
}

impl Layer {
    fn load(c: &Config, config: &Value, w: &Weights) -> Result<Layer> {
        let (hidden, intermediate, dim, eps) =
            (c.hidden_size, c.intermediate_size, c.head_dim, c.rms_norm_eps);
        let (heads, kv_heads) = (c.num_attention_heads, c.num_key_value_heads);
        let norm = |name| w.rms_norm(name, hidden, eps);
        let (attention, mlp) = (w.sub("self_attn"), w.sub("mlp"));
        let own = |w: &Weights, name, outputs, inputs| ClippedLinear::load(c, &w.sub(name), outputs, inputs);
        // Norm of a head, with its weight in the order in which pairs turn.
        let head_norm = |name: &str| -> Result<RmsNorm> {
            let weight = attention.sub(name).float32("weight", &[dim])?;
            Ok(RmsNorm::new(halves_together(&weight.reshape(&[1, 1, dim])).reshape(&[dim]), eps))
        };
        let attend = CoreAttention::new(heads, kv_heads, dim, rope(config, dim))
            .with_softmax(Softmax::scaled(1.0))
            .with_qk_norm(head_norm("q_norm")?, head_norm("k_norm")?);
        Ok(Layer {
            norms: [
                norm("input_layernorm")?,
                norm("post_attention_layernorm")?,
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ],
            q_proj: own(&attention, "q_proj", heads * dim, hidden)?,
            k_proj: own(&attention, "k_proj", kv_heads * dim, hidden)?,
            v_proj: own(&attention, "v_proj", kv_heads * dim, hidden)?,
            v_norm: RmsNorm::plain(dim, eps),
            heads: attend,
            head_dim: dim,
            o_proj: own(&attention, "o_proj", hidden, heads * dim)?,
            gate_proj: own(&mlp, "gate_proj", intermediate, hidden)?,
            up_proj: own(&mlp, "up_proj", intermediate, hidden)?,
            down_proj: own(&mlp, "down_proj", hidden, intermediate)?,
        })
    }

    /// `h` `[patches, hidden_size]`; `positions` int32 `[patches, 2]`: columns and rows.
    fn forward(&self, h: &Array, positions: &Array) -> Array {
        let [before_attention, after_attention, before_mlp, after_mlp] = &self.norms;
        let split = |x: Array| x.reshape(&[x.dim(0), -1, self.head_dim]);
        let joined = |x: Array| x.reshape(&[x.dim(0), -1]);
        let normed = before_attention.forward(h);
        let [q, k] = [&self.q_proj, &self.k_proj]
            .map(|projection| joined(halves_together(&split(projection.forward(&normed)))));
        let v = joined(self.v_norm.forward(&split(self.v_proj.forward(&normed))));
        let attended = self.heads.forward_both_ways([&q, &k, &v], positions, None);
        let h = h + after_attention.forward(&self.o_proj.forward(&attended));
        let normed = before_mlp.forward(&h);
        let (gate, up) = (self.gate_proj.forward(&normed), self.up_proj.forward(&normed));
        let fed = self.down_proj.forward(&gated(&gate, &up, Activation::GeluTanh));
        &h + after_mlp.forward(&fed)
    }
}

/// Reorders each head of `x` `[tokens, heads, head_dim]`: the first half of it turns by columns, in
/// pairs of its own two halves, and the second half by rows. Afterwards pairs are halves of the
/// whole head.
fn halves_together(x: &Array) -> Array {
    let (tokens, heads, dim) = (x.dim(0), x.dim(1), x.dim(2));
    let parts = x.reshape(&[tokens, heads, 2, 2, dim / 4]).transpose(&[0, 1, 3, 2, 4]);
    parts.reshape(&[tokens, heads, dim])
}

fn rope(config: &Value, head_dim: i32) -> Rope {
    let quarter = head_dim / 4;
    let theta = config.get("rope_parameters").and_then(|rope| rope.get("rope_theta"));
    let theta = theta.and_then(Value::as_f64).unwrap_or(100.0) as f32;
    let own = |i: i32| 1.0 / theta.powf((2 * i) as f32 / (2 * quarter) as f32);
    Rope {
        frequencies: (0..2 * quarter).map(|i| own(i % quarter)).collect(),
        axes: (0..2 * quarter).map(|i| u8::from(i >= quarter)).collect(),
        pairs: RopePairs::Halves,
        scale: 1.0,
    }
}
