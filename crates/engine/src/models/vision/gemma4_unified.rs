//! The vision embedder of Gemma 4's unified models, which have no tower: the pixels of a token pass
//! through one projection, and learned positions of columns and rows are added.
//!
//! Reference: transformers `gemma4_unified`.

use mlx::{Array, Dtype};
use nn::{LayerNorm, Linear, RmsNorm};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Tower, check_sizes};
use crate::{
    api::{Image, ImageTensor},
    error::Result,
    models::config::{ensure_supported, parse, with_defaults},
    weights::Weights,
};

const CHANNELS: i32 = 3;
/// Epsilon of the layer norms; config.json does not say.
const EPS: f32 = 1e-5;

#[derive(Deserialize)]
struct Config {
    patch_size: i32,
    /// Rows and columns of patches in a token.
    pooling_kernel_size: i32,
    mm_embed_dim: i32,
    mm_posemb_size: i32,
    output_proj_dims: i32,
    rms_norm_eps: f32,
}

/// transformers' defaults of absent keys.
fn defaults() -> Value {
    json!({
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "mm_embed_dim": 3840,
        "mm_posemb_size": 1120,
        "output_proj_dims": 3840,
        "rms_norm_eps": 1e-6,
    })
}

/// Loads the embedder `visual.*` of a text model of `hidden_size`.
pub(in crate::models) fn load(config: &Value, w: &Weights, hidden_size: i32) -> Result<Box<dyn Tower>> {
    let c: Config = parse(&with_defaults(config, defaults()))?;
    check_sizes([
        ("vision_config's patch_size", c.patch_size, 256),
        ("vision_config's pooling_kernel_size", c.pooling_kernel_size, 16),
        ("vision_config's mm_embed_dim", c.mm_embed_dim, 1 << 17),
        ("vision_config's mm_posemb_size", c.mm_posemb_size, 1 << 17),
    ])?;
    let dim = c.mm_embed_dim;
    ensure_supported(
        c.output_proj_dims == dim,
        format!("vision_config's output_proj_dims is {}, not mm_embed_dim, {dim}", c.output_proj_dims),
    )?;
    let values = c.token_values();
    let table = w.float32("pos_embedding", &[c.mm_posemb_size, 2, dim])?;
    Ok(Box::new(VisionEmbedder {
        patch_ln1: w.layer_norm("patch_ln1", values, EPS)?,
        patch_dense: w.linear_with("patch_dense", dim, values, true)?,
        patch_ln2: w.layer_norm("patch_ln2", dim, EPS)?,
        tables: [0, 1].map(|axis| table.slice(1, axis, axis + 1).reshape(&[-1, dim])),
        pos_norm: w.layer_norm("pos_norm", dim, EPS)?,
        embedding_pre_projection_norm: RmsNorm::plain(dim, c.rms_norm_eps),
        embedding_projection: w.sub("projector").linear("embedding_projection", hidden_size, dim)?,
        activations: w.activations("patch_ln1.weight")?,
        c,
    }))
}

impl Config {
    /// Numbers of the pixels of a token.
    fn token_values(&self) -> i32 {
        let side = self.patch_size * self.pooling_kernel_size;
        CHANNELS * side * side
    }
}

struct VisionEmbedder {
    c: Config,
    patch_ln1: LayerNorm,
    patch_dense: Linear,
    patch_ln2: LayerNorm,
    /// Position tables of columns and of rows, float32 `[mm_posemb_size, mm_embed_dim]` each.
    tables: [Array; 2],
    pos_norm: LayerNorm,
    embedding_pre_projection_norm: RmsNorm,
    embedding_projection: Linear,
    activations: Dtype,
}

impl Tower for VisionEmbedder {
    fn forward(&self, image: &Image) -> Array {
        let tensor = &image.tensors[0];
        let (rows, columns) = (tensor.rows as u32, tensor.columns as u32);
        let count = (rows * columns) as i32;
        let pixels = Array::from_slice(&tensor.values, &[count, self.c.token_values()]);
        let h = self.patch_dense.forward(&self.patch_ln1.forward(&pixels.astype(self.activations)));
        let places: [Vec<u32>; 2] = [
            (0..rows).flat_map(|_| 0..columns).collect(),
            (0..rows).flat_map(|row| (0..columns).map(move |_| row)).collect(),
        ];
        let [by_column, by_row] =
            [0, 1].map(|axis| self.tables[axis].take(&Array::from_slice(&places[axis], &[count]), 0));
        let h = self.patch_ln2.forward(&h) + (by_column + by_row).astype(self.activations);
        let h = self.embedding_pre_projection_norm.forward(&self.pos_norm.forward(&h));
        self.embedding_projection.forward(&h)
    }

    fn check(&self, image: &Image) -> std::result::Result<(), String> {
        let [tensor] = &image.tensors[..] else {
            return Err(format!("it has {} tensors, and the model takes one", image.tensors.len()));
        };
        let (values, most) = (self.c.token_values() as usize, self.c.mm_posemb_size as usize);
        let ImageTensor { rows, columns, .. } = *tensor;
        let sides = [rows, columns].iter().all(|&side| side > 0 && side <= most);
        let tokens = rows.checked_mul(columns);
        if !sides || tokens.and_then(|tokens| tokens.checked_mul(values)) != Some(tensor.values.len()) {
            return Err(format!(
                "its tensor has {} values for {rows} x {columns} patches; the model takes {values} for each, and sides of \
                 1 to {most}",
                tensor.values.len()
            ));
        }
        super::check_tokens(image, rows * columns)
    }

    fn grid(&self, _: &Image) -> Option<[usize; 2]> {
        None
    }

    fn token_bytes(&self) -> usize {
        (2 * self.c.token_values() + 8 * self.c.mm_embed_dim) as usize * size_of::<f32>()
    }
}
