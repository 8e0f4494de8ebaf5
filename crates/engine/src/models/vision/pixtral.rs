//! The tower of Mistral 3, Ministral 3 and Devstral: Pixtral, a transformer with Llama's blocks and
//! two-dimensional rotary positions, and a projector that merges patches.
//!
//! Reference: transformers `pixtral`, `mistral3`.

use mlx::{Array, Dtype};
use nn::{Activation, CoreAttention, Gelu, Linear, Mlp, Residual, RmsNorm, Rope, RopePairs, gelu};
use serde::Deserialize;
use serde_json::Value;

use super::{Tower, check_feature_layer, check_sizes, planes};
use crate::{
    api::{Image, ImageTensor},
    error::Result,
    models::{
        config::{check_activation, check_value, ensure_supported, parse},
        rope::RopeParameters,
    },
    weights::Weights,
};

/// Epsilon of the tower's norms; config.json does not say.
const EPS: f32 = 1e-5;

#[derive(Deserialize)]
struct Config {
    hidden_size: i32,
    intermediate_size: i32,
    num_hidden_layers: usize,
    num_attention_heads: i32,
    head_dim: Option<i32>,
    num_channels: i32,
    patch_size: i32,
}

/// Keys beside `vision_config`.
#[derive(Deserialize)]
struct ProjectorConfig {
    hidden_size: i32,
    rms_norm_eps: f32,
    #[serde(default = "two")]
    spatial_merge_size: i32,
    #[serde(default)]
    multimodal_projector_bias: bool,
}

fn two() -> i32 {
    2
}

/// Loads the tower `visual.*`; `text` is the text part of config.json.
pub(in crate::models) fn load(config: &Value, text: &Value, w: &Weights) -> Result<Box<dyn Tower>> {
    let (c, p): (Config, ProjectorConfig) = (parse(config)?, parse(text)?);
    check_activation(config, "hidden_act", "silu")?;
    check_value(text, "projector_hidden_act", "gelu")?;
    check_feature_layer(text)?;
    check_sizes([
        ("num_channels", c.num_channels, 64),
        ("patch_size", c.patch_size, 256),
        ("spatial_merge_size", p.spatial_merge_size, 16),
    ])?;
    let head_dim = c.head_dim.unwrap_or(c.hidden_size / c.num_attention_heads);
    ensure_supported(head_dim % 4 == 0, format!("vision_config's head_dim is {head_dim}, no multiple of 4"))?;
    let rope = rope(config, head_dim)?;
    let layers = w.sub("transformer").sub("layers");
    let layer = |i| Layer::load(&c, head_dim, &rope, &layers.sub(i));
    Ok(Box::new(PixtralTower {
        patch_conv: w.patch_conv("patch_conv", c.hidden_size, c.num_channels, [c.patch_size; 2], false)?,
        ln_pre: w.rms_norm("ln_pre", c.hidden_size, EPS)?,
        layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
        projector: Projector::load(&c, &p, &w.sub("projector"))?,
        activations: w.activations("patch_conv.weight")?,
        merge: p.spatial_merge_size as usize,
        c,
    }))
}

/// Rotation by row and column: every other one of a whole head's frequencies turns by the row, the
/// others by the column.
fn rope(config: &Value, head_dim: i32) -> Result<Rope> {
    let parameters = config.get("rope_parameters").cloned().unwrap_or_default();
    let theta = parameters.get("rope_theta").or(config.get("rope_theta")).cloned();
    let plain = serde_json::json!({ "rope_theta": theta.unwrap_or(10_000.0.into()) });
    let whole = RopeParameters::of(&plain, None)?.rope(head_dim, RopePairs::Halves)?.frequencies;
    let by = |first: usize| whole.iter().copied().skip(first).step_by(2);
    let frequencies: Vec<f32> = by(0).chain(by(1)).collect();
    let axes = (0..whole.len()).map(|i| u8::from(i >= whole.len() / 2)).collect();
    Ok(Rope { frequencies, axes, pairs: RopePairs::Halves, scale: 1.0 })
}

struct PixtralTower {
    c: Config,
    merge: usize,
    patch_conv: Linear,
    ln_pre: RmsNorm,
    layers: Vec<Layer>,
    projector: Projector,
    activations: Dtype,
}

impl PixtralTower {
    /// Rows and columns of patches.
    fn grid_of(&self, tensor: &ImageTensor) -> [usize; 2] {
        [tensor.rows, tensor.columns].map(|side| side / self.c.patch_size as usize)
    }
}

impl Tower for PixtralTower {
    fn forward(&self, image: &Image) -> Array {
        let tensor = &image.tensors[0];
        let [rows, columns] = self.grid_of(tensor);
        let places = (0..rows as i32).flat_map(|row| (0..columns as i32).flat_map(move |c| [row, c]));
        let places: Vec<i32> = places.collect();
        let positions = Array::from_slice(&places, &[(rows * columns) as i32, 2]);
        let patches =
            planes::patches(tensor, self.c.num_channels, self.c.patch_size).astype(self.activations);
        let mut h = self.ln_pre.forward(&self.patch_conv.forward(&patches));
        for layer in &self.layers {
            h = layer.forward(&h, &positions);
        }
        self.projector.forward(&h, [rows, columns])
    }

    fn check(&self, image: &Image) -> std::result::Result<(), String> {
        let side = self.c.patch_size as usize * self.merge;
        let tensor = planes::single(image, self.c.num_channels, side)?;
        super::check_tokens(image, tensor.rows / side * (tensor.columns / side))
    }

    fn grid(&self, _: &Image) -> Option<[usize; 2]> {
        None
    }

    fn token_bytes(&self) -> usize {
        let values = self.c.num_channels * self.c.patch_size * self.c.patch_size;
        let patch = values + 10 * self.c.hidden_size + 3 * self.c.intermediate_size;
        patch as usize * self.merge * self.merge * size_of::<f32>()
    }
}

struct Layer {
    attention_norm: RmsNorm,
    /// Projections of queries, keys and values.
    projections: [Linear; 3],
    heads: CoreAttention,
    o_proj: Linear,
    ffn_norm: RmsNorm,
    feed_forward: Mlp,
}

impl Layer {
    fn load(c: &Config, head_dim: i32, rope: &Rope, w: &Weights) -> Result<Layer> {
        let (hidden, heads) = (c.hidden_size, c.num_attention_heads);
        let attention = w.sub("attention");
        let project = |name| attention.linear(name, heads * head_dim, hidden);
        Ok(Layer {
            attention_norm: w.rms_norm("attention_norm", hidden, EPS)?,
            projections: [project("q_proj")?, project("k_proj")?, project("v_proj")?],
            heads: CoreAttention::new(heads, heads, head_dim, rope.clone()),
            o_proj: attention.linear("o_proj", hidden, heads * head_dim)?,
            ffn_norm: w.rms_norm("ffn_norm", hidden, EPS)?,
            feed_forward: w.sub("feed_forward").mlp(hidden, c.intermediate_size, Activation::Silu)?,
        })
    }

    /// `h` `[patches, hidden_size]`; `positions` int32 `[patches, 2]`: rows and columns.
    fn forward(&self, h: &Array, positions: &Array) -> Array {
        let x = Residual::new(h, &self.attention_norm);
        let [q, k, v] = x.project(self.projections.each_ref());
        let attended = self.heads.forward_both_ways([&q, &k, &v], positions, None);
        let h = x.add_projected(&self.o_proj, &attended);
        self.feed_forward.add_to(&Residual::new(&h, &self.ffn_norm))
    }
}

struct Projector {
    norm: RmsNorm,
    merge: usize,
    merging_layer: Linear,
    linear_1: Linear,
    linear_2: Linear,
}

impl Projector {
    fn load(c: &Config, p: &ProjectorConfig, w: &Weights) -> Result<Projector> {
        let (hidden, out, bias) = (c.hidden_size, p.hidden_size, p.multimodal_projector_bias);
        let merged = hidden * p.spatial_merge_size * p.spatial_merge_size;
        Ok(Projector {
            norm: w.rms_norm("norm", hidden, p.rms_norm_eps)?,
            merge: p.spatial_merge_size as usize,
            merging_layer: w.sub("patch_merger").linear("merging_layer", hidden, merged)?,
            linear_1: w.linear_with("linear_1", out, hidden, bias)?,
            linear_2: w.linear_with("linear_2", out, out, bias)?,
        })
    }

    fn forward(&self, h: &Array, [rows, columns]: [usize; 2]) -> Array {
        let (merge, width) = (self.merge as i32, h.dim(1));
        let [rows, columns] = [rows, columns].map(|side| side as i32 / merge);
        // Each number of all merged patches together.
        let blocks = self.norm.forward(h).reshape(&[rows, merge, columns, merge, width]);
        let merged = blocks.transpose(&[0, 2, 4, 1, 3]).reshape(&[rows * columns, width * merge * merge]);
        let merged = self.merging_layer.forward(&merged);
        self.linear_2.forward(&gelu(&self.linear_1.forward(&merged), Gelu::Exact))
    }
}
