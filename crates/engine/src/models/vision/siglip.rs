//! The tower of Gemma 3: SigLIP, a transformer with learned positions for pictures of one size,
//! whose output is averaged over squares of patches.
//!
//! Reference: transformers `siglip`, `gemma3`.

use std::cell::OnceCell;

use mlx::{Array, Dtype};
use nn::{CoreAttention, Embedding, Gelu, LayerNorm, Linear, RmsNorm, Rope, RopePairs, gelu};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Tower, check_sizes, planes};
use crate::{
    api::{Image, ImageTensor},
    error::Result,
    models::config::{check_activation, ensure_supported, parse, with_defaults},
    weights::Weights,
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    encoder: EncoderConfig,
    num_channels: i32,
    image_size: i32,
    patch_size: i32,
}

/// Keys of SigLIP's layers.
#[derive(Deserialize)]
pub(super) struct EncoderConfig {
    pub hidden_size: i32,
    pub intermediate_size: i32,
    num_hidden_layers: usize,
    num_attention_heads: i32,
    pub layer_norm_eps: f32,
}

/// transformers' defaults of keys that published files leave out.
fn defaults() -> Value {
    json!({ "num_channels": 3, "image_size": 224, "patch_size": 16, "layer_norm_eps": 1e-6 })
}

/// Loads the tower `visual.*` for a text model of `hidden_size`; each image has `tokens` features.
pub(in crate::models) fn load(
    config: &Value,
    w: &Weights,
    hidden_size: i32,
    tokens: i32,
) -> Result<Box<dyn Tower>> {
    let c: Config = parse(&with_defaults(config, defaults()))?;
    check_activation(config, "hidden_act", "gelu_pytorch_tanh")?;
    check_sizes([
        ("vision_config's num_channels", c.num_channels, 64),
        ("vision_config's patch_size", c.patch_size, 256),
        ("vision_config's image_size", c.image_size, 1 << 13),
    ])?;
    let patches = c.image_size / c.patch_size;
    let side = f64::from(tokens.max(0)).sqrt() as i32;
    ensure_supported(
        side > 0 && side * side == tokens && patches % side == 0,
        format!("mm_tokens_per_image is {tokens}; it must be the square of a part of {patches} patches"),
    )?;
    let (embeddings, projector) = (w.sub("embeddings"), w.sub("projector"));
    let hidden = c.encoder.hidden_size;
    let window = [c.patch_size; 2];
    Ok(Box::new(SiglipTower {
        patch_embedding: embeddings.patch_conv("patch_embedding", hidden, c.num_channels, window, true)?,
        position_embedding: embeddings.embedding("position_embedding", patches * patches, hidden)?,
        positions: OnceCell::new(),
        encoder: Encoder::load(&c.encoder, w)?,
        mm_soft_emb_norm: projector.rms_norm("mm_soft_emb_norm", hidden, c.encoder.layer_norm_eps)?,
        mm_input_projection: projector.transposed("mm_input_projection_weight", hidden_size, hidden)?,
        activations: embeddings.activations("patch_embedding.weight")?,
        side,
        c,
    }))
}

struct SiglipTower {
    c: Config,
    /// Rows of features, and their columns.
    side: i32,
    patch_embedding: Linear,
    position_embedding: Embedding,
    positions: OnceCell<Array>,
    encoder: Encoder,
    mm_soft_emb_norm: RmsNorm,
    mm_input_projection: Linear,
    activations: Dtype,
}

impl SiglipTower {
    fn patches(&self) -> i32 {
        self.c.image_size / self.c.patch_size
    }
}

impl Tower for SiglipTower {
    fn forward(&self, image: &Image) -> Array {
        let count = self.patches() * self.patches();
        let positions = self.positions.get_or_init(|| {
            let all: Vec<u32> = (0..count as u32).collect();
            self.position_embedding.forward(&Array::from_slice(&all, &[count])).astype(self.activations)
        });
        let patches = planes::patches(&image.tensors[0], self.c.num_channels, self.c.patch_size);
        let h = self.patch_embedding.forward(&patches.astype(self.activations)) + positions;
        let h = self.encoder.forward(h);
        let (side, pool) = (self.side, self.patches() / self.side);
        let squares = h.reshape(&[side, pool, side, pool, -1]).sum(3, false).sum(1, false);
        let pooled = squares.reshape(&[side * side, -1]) * (1.0 / (pool * pool) as f32);
        self.mm_input_projection.forward(&self.mm_soft_emb_norm.forward(&pooled))
    }

    fn check(&self, image: &Image) -> std::result::Result<(), String> {
        let side = self.c.image_size as usize;
        let tensor = planes::single(image, self.c.num_channels, 1)?;
        let ImageTensor { rows, columns, .. } = *tensor;
        if [rows, columns] != [side; 2] {
            return Err(format!("its tensor has {rows} x {columns} pixels; the model takes {side} x {side}"));
        }
        super::check_tokens(image, (self.side * self.side) as usize)
    }

    fn grid(&self, _: &Image) -> Option<[usize; 2]> {
        None
    }

    fn token_bytes(&self) -> usize {
        let pool = self.patches() / self.side;
        let values = self.c.num_channels * self.c.patch_size * self.c.patch_size;
        let patch = values + 10 * self.c.encoder.hidden_size + 2 * self.c.encoder.intermediate_size;
        (patch * pool * pool) as usize * size_of::<f32>()
    }
}

/// The layers and the norm after them.
pub(super) struct Encoder {
    layers: Vec<Layer>,
    post_layernorm: LayerNorm,
}

impl Encoder {
    /// Reads `encoder.layers.*` and `post_layernorm`.
    pub(super) fn load(c: &EncoderConfig, w: &Weights) -> Result<Encoder> {
        let layers = w.sub("encoder").sub("layers");
        Ok(Encoder {
            layers: (0..c.num_hidden_layers)
                .map(|i| Layer::load(c, &layers.sub(i)))
                .collect::<Result<_>>()?,
            post_layernorm: w.layer_norm("post_layernorm", c.hidden_size, c.layer_norm_eps)?,
        })
    }

    /// `h` `[patches, hidden_size]`, with positions.
    pub(super) fn forward(&self, mut h: Array) -> Array {
        let places = Array::arange(0, h.dim(0), Dtype::Int32);
        for layer in &self.layers {
            h = layer.forward(&h, &places);
        }
        self.post_layernorm.forward(&h)
    }
}

struct Layer {
    layer_norm1: LayerNorm,
    /// Projections of queries, keys and values.
    projections: [Linear; 3],
    heads: CoreAttention,
    out_proj: Linear,
    layer_norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Layer {
    fn load(c: &EncoderConfig, w: &Weights) -> Result<Layer> {
        let (hidden, intermediate, heads) = (c.hidden_size, c.intermediate_size, c.num_attention_heads);
        let whole = hidden % heads == 0;
        ensure_supported(whole, "vision_config's hidden_size is no multiple of num_attention_heads")?;
        let (attention, mlp) = (w.sub("self_attn"), w.sub("mlp"));
        let project = |name| attention.linear_with(name, hidden, hidden, true);
        // Positions are learned.
        let rope = Rope { frequencies: vec![], axes: vec![], pairs: RopePairs::Halves, scale: 1.0 };
        Ok(Layer {
            layer_norm1: w.layer_norm("layer_norm1", hidden, c.layer_norm_eps)?,
            projections: [project("q_proj")?, project("k_proj")?, project("v_proj")?],
            heads: CoreAttention::new(heads, heads, hidden / heads, rope),
            out_proj: project("out_proj")?,
            layer_norm2: w.layer_norm("layer_norm2", hidden, c.layer_norm_eps)?,
            fc1: mlp.linear_with("fc1", intermediate, hidden, true)?,
            fc2: mlp.linear_with("fc2", hidden, intermediate, true)?,
        })
    }

    fn forward(&self, h: &Array, places: &Array) -> Array {
        let normed = self.layer_norm1.forward(h);
        let [q, k, v] = self.projections.each_ref().map(|projection| projection.forward(&normed));
        let h = h + self.out_proj.forward(&self.heads.forward_both_ways([&q, &k, &v], places, None));
        let inner = gelu(&self.fc1.forward(&self.layer_norm2.forward(&h)), Gelu::Tanh);
        &h + self.fc2.forward(&inner)
    }
}
