//! The tower of LFM2-VL: SigLIP 2 for pictures of any size, whose learned positions are resized to
//! the picture's grid, and a projector that joins squares of patches. Large pictures come as tiles
//! and a thumbnail, which the tower sees one at a time.
//!
//! Reference: transformers `siglip2`, `lfm2_vl`.

use std::cell::OnceCell;

use mlx::{Array, Dtype};
use nn::{Embedding, Gelu, LayerNorm, Linear, gelu};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Tower, check_feature_layer, check_sizes,
    siglip::{Encoder, EncoderConfig},
};
use crate::{
    api::{Image, ImageTensor},
    error::Result,
    models::config::{check_activation, check_value, ensure_supported, parse, with_defaults},
    weights::Weights,
};

/// Epsilon of the projector's norm; config.json does not say.
const PROJECTOR_EPS: f32 = 1e-5;

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    encoder: EncoderConfig,
    num_channels: i32,
    patch_size: i32,
    /// Entries of the position table, a square.
    num_patches: i32,
}

/// Keys beside `vision_config`.
#[derive(Deserialize)]
struct ProjectorConfig {
    hidden_size: i32,
    downsample_factor: i32,
    projector_hidden_size: i32,
    projector_bias: bool,
    projector_use_layernorm: bool,
}

/// transformers' defaults of absent keys in `vision_config`.
fn defaults() -> Value {
    json!({ "num_channels": 3, "patch_size": 16, "num_patches": 256, "layer_norm_eps": 1e-6 })
}

/// transformers' defaults of absent keys of the projector.
fn projector_defaults() -> Value {
    json!({
        "downsample_factor": 2,
        "projector_hidden_size": 2560,
        "projector_bias": true,
        "projector_use_layernorm": true,
    })
}

/// Loads the tower `visual.*`; `text` is the text part of config.json.
pub(in crate::models) fn load(config: &Value, text: &Value, w: &Weights) -> Result<Box<dyn Tower>> {
    let c: Config = parse(&with_defaults(config, defaults()))?;
    let p: ProjectorConfig = parse(&with_defaults(text, projector_defaults()))?;
    check_activation(config, "hidden_act", "gelu_pytorch_tanh")?;
    check_value(text, "projector_hidden_act", "gelu")?;
    check_feature_layer(text)?;
    check_sizes([
        ("vision_config's num_channels", c.num_channels, 64),
        ("vision_config's patch_size", c.patch_size, 256),
        ("vision_config's num_patches", c.num_patches, 1 << 20),
        ("downsample_factor", p.downsample_factor, 16),
        ("projector_hidden_size", p.projector_hidden_size, 1 << 17),
    ])?;
    let side = (c.num_patches as f32).sqrt().round() as i32;
    ensure_supported(side * side == c.num_patches, "vision_config's num_patches is no square")?;
    // The pooled output, which serves to compare pictures with texts.
    w.sub("head").skip_all();
    let (hidden, embeddings) = (c.encoder.hidden_size, w.sub("embeddings"));
    let values = c.num_channels * c.patch_size * c.patch_size;
    Ok(Box::new(Siglip2Tower {
        patch_embedding: embeddings.linear_with("patch_embedding", hidden, values, true)?,
        position_embedding: embeddings.embedding("position_embedding", c.num_patches, hidden)?,
        table: OnceCell::new(),
        side: side as usize,
        encoder: Encoder::load(&c.encoder, w)?,
        projector: Projector::load(&c, &p, &w.sub("projector"))?,
        activations: w.activations("post_layernorm.weight")?,
        c,
    }))
}

struct Siglip2Tower {
    c: Config,
    patch_embedding: Linear,
    position_embedding: Embedding,
    /// Values of `position_embedding`, `[side * side, hidden_size]`.
    table: OnceCell<Vec<f32>>,
    /// Rows and columns of the position table.
    side: usize,
    encoder: Encoder,
    projector: Projector,
    activations: Dtype,
}

impl Siglip2Tower {
    /// Features of a tile, of the thumbnail or of the only view.
    fn view(&self, tensor: &ImageTensor) -> Array {
        let (patches, values) = ((tensor.rows * tensor.columns) as i32, self.patch_values() as i32);
        let pixels = Array::from_slice(&tensor.values, &[patches, values]).astype(self.activations);
        let positions = self.positions(tensor).astype(self.activations);
        let h = self.encoder.forward(self.patch_embedding.forward(&pixels) + positions);
        self.projector.forward(&h, [tensor.rows, tensor.columns])
    }

    /// The learned positions, resized to the view's grid: `[patches, hidden_size]`.
    fn positions(&self, tensor: &ImageTensor) -> Array {
        let table = self.table.get_or_init(|| {
            let all: Vec<u32> = (0..self.c.num_patches as u32).collect();
            let rows = self.position_embedding.forward(&Array::from_slice(&all, &[self.c.num_patches]));
            rows.to_f32().unwrap_or_else(|e| panic!("{e}"))
        });
        let (width, columns) = (self.c.encoder.hidden_size as usize, tensor.columns);
        let by_column = filters(self.side, columns);
        // Columns first: each row of the table, then rows of those.
        let mut narrowed = vec![0.0; self.side * columns * width];
        for (out, row) in narrowed.chunks_exact_mut(columns * width).zip(table.chunks(self.side * width)) {
            out.chunks_exact_mut(width).zip(&by_column).for_each(|(out, filter)| filter.add_to(out, row));
        }
        let mut values = vec![0.0; tensor.rows * columns * width];
        let rows = values.chunks_exact_mut(columns * width).zip(filters(self.side, tensor.rows));
        rows.for_each(|(out, filter)| filter.add_to(out, &narrowed));
        Array::from_slice(&values, &[(tensor.rows * columns) as i32, width as i32])
    }

    fn patch_values(&self) -> usize {
        (self.c.num_channels * self.c.patch_size * self.c.patch_size) as usize
    }
}

/// The table's entries that a sample is made of.
#[derive(Debug, PartialEq)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

impl Filter {
    /// Adds the weighted sum of `entries`, each as long as `out`.
    fn add_to(&self, out: &mut [f32], entries: &[f32]) {
        for (entry, weight) in entries.chunks_exact(out.len()).skip(self.first).zip(&self.weights) {
            out.iter_mut().zip(entry).for_each(|(out, x)| *out += weight * x);
        }
    }
}

/// Filters that resize a table of `side` entries to `count` samples: linear between the two nearest
/// entries and, where samples are fewer, over as many entries as there are to a sample
/// (`interpolate` of torch with `antialias`).
fn filters(side: usize, count: usize) -> Vec<Filter> {
    let scale = side as f32 / count as f32;
    let support = scale.max(1.0);
    let filter = |i: usize| {
        let centre = scale * (i as f32 + 0.5);
        let first = (centre - support + 0.5) as usize;
        let end = ((centre + support + 0.5) as usize).min(side);
        let weight = |entry: usize| (1.0 - ((entry as f32 - centre + 0.5) / support).abs()).max(0.0);
        let weights: Vec<f32> = (first..end).map(weight).collect();
        let sum: f32 = weights.iter().sum();
        Filter { first, weights: weights.iter().map(|weight| weight / sum).collect() }
    };
    (0..count).map(filter).collect()
}

impl Tower for Siglip2Tower {
    fn forward(&self, image: &Image) -> Array {
        let views: Vec<Array> = image.tensors.iter().map(|tensor| self.view(tensor)).collect();
        Array::concatenate(&views, 0)
    }

    fn check(&self, image: &Image) -> std::result::Result<(), String> {
        let (factor, values) = (self.projector.factor as usize, self.patch_values());
        let mut tokens = 0;
        for tensor in image.tensors.iter() {
            let ImageTensor { rows, columns, .. } = *tensor;
            let whole = [rows, columns].iter().all(|&side| side > 0 && side.is_multiple_of(factor));
            let patches = rows.checked_mul(columns).and_then(|patches| patches.checked_mul(values));
            if !whole || patches != Some(tensor.values.len()) {
                return Err(format!(
                    "its tensor has {} values for {rows} x {columns} patches; the model takes {values} for each, and \
                     sides that are multiples of {factor}",
                    tensor.values.len()
                ));
            }
            tokens += rows / factor * (columns / factor);
        }
        if tokens == 0 {
            return Err("it has 0 tensors, and the model takes one or more".into());
        }
        super::check_tokens(image, tokens)
    }

    fn grid(&self, _: &Image) -> Option<[usize; 2]> {
        None
    }

    fn token_bytes(&self) -> usize {
        let c = &self.c.encoder;
        let patch = self.patch_values() + (10 * c.hidden_size + 2 * c.intermediate_size) as usize;
        patch * (self.projector.factor * self.projector.factor) as usize * size_of::<f32>()
    }
}

/// Squares of `factor` x `factor` patches to features.
struct Projector {
    factor: i32,
    layer_norm: Option<LayerNorm>,
    linear_1: Linear,
    linear_2: Linear,
}

impl Projector {
    fn load(c: &Config, p: &ProjectorConfig, w: &Weights) -> Result<Projector> {
        let (factor, inner, bias) = (p.downsample_factor, p.projector_hidden_size, p.projector_bias);
        let joined = c.encoder.hidden_size * factor * factor;
        let norm = || w.layer_norm("layer_norm", joined, PROJECTOR_EPS);
        Ok(Projector {
            factor,
            layer_norm: p.projector_use_layernorm.then(norm).transpose()?,
            linear_1: w.linear_with("linear_1", inner, joined, bias)?,
            linear_2: w.linear_with("linear_2", p.hidden_size, inner, bias)?,
        })
    }

    /// `h` `[rows * columns, hidden_size]`.
    fn forward(&self, h: &Array, [rows, columns]: [usize; 2]) -> Array {
        let (factor, width) = (self.factor, h.dim(1));
        let [rows, columns] = [rows, columns].map(|side| side as i32 / factor);
        let squares = h.reshape(&[rows, factor, columns, factor, width]).transpose(&[0, 2, 1, 3, 4]);
        let joined = squares.reshape(&[rows * columns, factor * factor * width]);
        let joined = match &self.layer_norm {
            Some(norm) => norm.forward(&joined),
            None => joined,
        };
        self.linear_2.forward(&gelu(&self.linear_1.forward(&joined), Gelu::Exact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of all entries, with zeros for those that a filter leaves out.
    fn dense_filters(side: usize, count: usize) -> Vec<Vec<f32>> {
        let dense = |Filter { first, weights }: Filter| {
            let mut all = vec![0.0; side];
            all[first..first + weights.len()].copy_from_slice(&weights);
            all
        };
        filters(side, count).into_iter().map(dense).collect()
    }

    #[test]
    fn filters_interpolate_between_entries_and_average_where_samples_are_fewer() {
        assert_eq!(dense_filters(2, 2), [[1.0, 0.0], [0.0, 1.0]]);
        assert_eq!(dense_filters(2, 4), [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]);
        let [two, three] = [2.0, 3.0].map(|part: f32| part / 7.0);
        let near = |(a, b): (&f32, f32)| (a - b).abs() < 1e-6;
        assert!(dense_filters(3, 1)[0].iter().zip([two, three, two]).all(near));
        for (side, count) in (1..20).flat_map(|side| (1..40).map(move |count| (side, count))) {
            for Filter { first, weights } in filters(side, count) {
                assert!(!weights.is_empty() && first + weights.len() <= side);
                assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    }
}
