//! The tower of Qwen3-VL, 3.5 and 3.6: a vision transformer with two-dimensional rotary positions
//! over learned ones, whose output is merged two by two. Qwen3-VL merges the outputs of some
//! earlier blocks too, for the first layers of the text model.
//!
//! Reference: transformers `qwen3_5`, `qwen3_vl`.

use std::cell::OnceCell;

use mlx::{Array, Dtype};
use nn::{CoreAttention, Embedding, Gelu, LayerNorm, Linear, Rope, RopePairs, gelu};
use serde::Deserialize;
use serde_json::Value;

use super::{Tower, check_sizes};
use crate::{
    api::{Image, ImageTensor},
    error::Result,
    models::config::{check_activation, ensure_supported, parse},
    weights::Weights,
};

const EPS: f32 = 1e-6;
const THETA: f32 = 10_000.0;

#[derive(Deserialize)]
struct Config {
    depth: usize,
    hidden_size: i32,
    intermediate_size: i32,
    num_heads: i32,
    in_channels: i32,
    patch_size: i32,
    temporal_patch_size: i32,
    spatial_merge_size: i32,
    out_hidden_size: i32,
    num_position_embeddings: i32,
    #[serde(default)]
    deepstack_visual_indexes: Vec<usize>,
}

impl Config {
    fn check(&self, config: &Value, hidden_size: i32) -> Result<()> {
        check_activation(config, "hidden_act", "gelu_pytorch_tanh")?;
        check_sizes([
            ("vision_config's in_channels", self.in_channels, 64),
            ("vision_config's patch_size", self.patch_size, 256),
            ("vision_config's temporal_patch_size", self.temporal_patch_size, 16),
            ("vision_config's spatial_merge_size", self.spatial_merge_size, 16),
            ("vision_config's num_position_embeddings", self.num_position_embeddings, 1 << 20),
        ])?;
        let side = self.side();
        ensure_supported(
            side * side == self.num_position_embeddings,
            "num_position_embeddings is no square",
        )?;
        let whole = self.num_heads > 0 && self.hidden_size % (4 * self.num_heads) == 0;
        ensure_supported(whole, "vision_config's hidden_size is no multiple of four times num_heads")?;
        ensure_supported(
            self.out_hidden_size == hidden_size,
            format!("vision_config's out_hidden_size is {}, not hidden_size", self.out_hidden_size),
        )?;
        let indices = &self.deepstack_visual_indexes;
        ensure_supported(
            indices.iter().all(|&index| index < self.depth) && indices.is_sorted_by(|a, b| a < b),
            format!(
                "vision_config's deepstack_visual_indexes are {indices:?}; they must be ascending blocks"
            ),
        )
    }

    /// Rows and columns of the position table.
    fn side(&self) -> i32 {
        (self.num_position_embeddings as f32).sqrt().round() as i32
    }

    fn patch_values(&self) -> usize {
        (self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size) as usize
    }
}

/// Loads the tower `visual.*` of a text model of `hidden_size`.
pub(in crate::models) fn load(config: &Value, w: &Weights, hidden_size: i32) -> Result<Box<dyn Tower>> {
    let c: Config = parse(config)?;
    c.check(config, hidden_size)?;
    let (hidden, patch) = (c.hidden_size, c.patch_size);
    let window = [c.temporal_patch_size, patch, patch];
    let (blocks, deep) = (w.sub("blocks"), w.sub("deepstack_merger_list"));
    let num_deep = c.deepstack_visual_indexes.len();
    Ok(Box::new(VisionTower {
        patch_embed: w.sub("patch_embed").patch_conv("proj", hidden, c.in_channels, window, true)?,
        pos_embed: w.embedding("pos_embed", c.num_position_embeddings, hidden)?,
        table: OnceCell::new(),
        blocks: (0..c.depth).map(|i| Block::load(&c, &blocks.sub(i))).collect::<Result<_>>()?,
        merger: Merger::load(&c, &w.sub("merger"), false)?,
        deep_mergers: (0..num_deep).map(|i| Merger::load(&c, &deep.sub(i), true)).collect::<Result<_>>()?,
        activations: w.activations("patch_embed.proj.weight")?,
        c,
    }))
}

struct VisionTower {
    c: Config,
    patch_embed: Linear,
    pos_embed: Embedding,
    /// Values of `pos_embed`, `[side * side, hidden_size]`.
    table: OnceCell<Vec<f32>>,
    blocks: Vec<Block>,
    merger: Merger,
    /// Mergers after the blocks in `deepstack_visual_indexes`.
    deep_mergers: Vec<Merger>,
    activations: Dtype,
}

impl VisionTower {
    /// Row and column of each patch, in the order of the tensor: merged ones together.
    fn places(&self, tensor: &ImageTensor) -> Vec<[usize; 2]> {
        let merge = self.c.spatial_merge_size as usize;
        let mut places = Vec::with_capacity(tensor.rows * tensor.columns);
        for top in (0..tensor.rows).step_by(merge) {
            for left in (0..tensor.columns).step_by(merge) {
                let block = (top..top + merge).flat_map(|row| (left..left + merge).map(move |c| [row, c]));
                places.extend(block);
            }
        }
        places
    }

    /// The learned positions, sampled between the table's corners: `[patches, hidden_size]`.
    fn positions(&self, tensor: &ImageTensor, places: &[[usize; 2]]) -> Array {
        let (side, width) = (self.c.side() as usize, self.c.hidden_size as usize);
        let table = self.table.get_or_init(|| {
            let all: Vec<u32> = (0..self.c.num_position_embeddings as u32).collect();
            let rows = self.pos_embed.forward(&Array::from_slice(&all, &[all.len() as i32]));
            rows.to_f32().unwrap_or_else(|e| panic!("{e}"))
        });
        let axes = [tensor.rows, tensor.columns].map(|count| samples(side, count));
        let mut values = vec![0.0f32; places.len() * width];
        for (out, place) in values.chunks_exact_mut(width).zip(places) {
            let [rows, columns] = [0, 1].map(|axis| axes[axis][place[axis]]);
            for (row, by_row) in rows {
                for (column, by_column) in columns {
                    let (weight, from) = (by_row * by_column, (row * side + column) * width);
                    out.iter_mut().zip(&table[from..][..width]).for_each(|(out, x)| *out += weight * x);
                }
            }
        }
        Array::from_slice(&values, &[places.len() as i32, width as i32])
    }
}

/// Where `count` samples from end to end of a table of `side` entries lie: the two entries around
/// each, with their weights.
fn samples(side: usize, count: usize) -> Vec<[(usize, f32); 2]> {
    let step = (side - 1) as f32 / (count.max(2) - 1) as f32;
    let sample = |i: usize| {
        // From both ends, as torch.linspace.
        let at =
            if i < count / 2 { step * i as f32 } else { (side - 1) as f32 - step * (count - 1 - i) as f32 };
        let at = if count == 1 { 0.0 } else { at };
        let (below, fraction) = (at as usize, at - at.floor());
        [(below, 1.0 - fraction), ((below + 1).min(side - 1), fraction)]
    };
    (0..count).map(sample).collect()
}

impl Tower for VisionTower {
    fn forward(&self, image: &Image) -> Array {
        let tensor = &image.tensors[0];
        let places = self.places(tensor);
        let patches = Array::from_slice(&tensor.values, &[places.len() as i32, self.c.patch_values() as i32]);
        let mut h = self.patch_embed.forward(&patches.astype(self.activations));
        h = h + self.positions(tensor, &places).astype(self.activations);
        let positions: Vec<i32> = places.iter().flatten().map(|&axis| axis as i32).collect();
        let positions = Array::from_slice(&positions, &[places.len() as i32, 2]);
        let mut deep = vec![];
        for (i, block) in self.blocks.iter().enumerate() {
            h = block.forward(&h, &positions);
            let index = self.c.deepstack_visual_indexes.iter().position(|&index| index == i);
            deep.extend(index.map(|index| self.deep_mergers[index].forward(&h)));
        }
        let features = self.merger.forward(&h);
        if deep.is_empty() { features } else { Array::concatenate([&features].into_iter().chain(&deep), 1) }
    }

    fn num_deep(&self) -> usize {
        self.deep_mergers.len()
    }

    fn check(&self, image: &Image) -> std::result::Result<(), String> {
        let [tensor] = &image.tensors[..] else {
            return Err(format!("it has {} tensors, and the model takes one", image.tensors.len()));
        };
        let (merge, values) = (self.c.spatial_merge_size as usize, self.c.patch_values());
        let ImageTensor { rows, columns, .. } = *tensor;
        let patches = rows.checked_mul(columns).filter(|&patches| patches > 0);
        let fits = |patches: usize| {
            let whole = rows.is_multiple_of(merge) && columns.is_multiple_of(merge);
            whole && patches.checked_mul(values) == Some(tensor.values.len())
        };
        if !patches.is_some_and(fits) {
            return Err(format!(
                "its tensor has {} values for {rows} x {columns} patches; the model takes {values} for each, and patches \
                 in groups of {merge} x {merge}",
                tensor.values.len()
            ));
        }
        if image.positions.len() != 1 {
            return Err(format!("its positions are {} runs; the model takes one", image.positions.len()));
        }
        super::check_tokens(image, rows / merge * (columns / merge))
    }

    fn grid(&self, image: &Image) -> Option<[usize; 2]> {
        let (tensor, merge) = (image.tensors.first()?, self.c.spatial_merge_size as usize);
        Some([tensor.rows / merge, tensor.columns / merge])
    }

    fn token_bytes(&self) -> usize {
        let c = &self.c;
        let patch = c.patch_values() + (10 * c.hidden_size + 2 * c.intermediate_size) as usize;
        patch * (c.spatial_merge_size * c.spatial_merge_size) as usize * size_of::<f32>()
    }
}

struct Block {
    norm1: LayerNorm,
    /// Queries, keys and values.
    qkv: Linear,
    heads: CoreAttention,
    proj: Linear,
    norm2: LayerNorm,
    linear_fc1: Linear,
    linear_fc2: Linear,
}

impl Block {
    fn load(c: &Config, w: &Weights) -> Result<Block> {
        let (hidden, intermediate) = (c.hidden_size, c.intermediate_size);
        let (attention, mlp) = (w.sub("attn"), w.sub("mlp"));
        let head_dim = hidden / c.num_heads;
        Ok(Block {
            norm1: w.layer_norm("norm1", hidden, EPS)?,
            qkv: attention.linear_with("qkv", 3 * hidden, hidden, true)?,
            heads: CoreAttention::new(c.num_heads, c.num_heads, head_dim, rope(head_dim)),
            proj: attention.linear_with("proj", hidden, hidden, true)?,
            norm2: w.layer_norm("norm2", hidden, EPS)?,
            linear_fc1: mlp.linear_with("linear_fc1", intermediate, hidden, true)?,
            linear_fc2: mlp.linear_with("linear_fc2", hidden, intermediate, true)?,
        })
    }

    /// `h` `[patches, hidden_size]`; `positions` int32 `[patches, 2]`: rows and columns.
    fn forward(&self, h: &Array, positions: &Array) -> Array {
        let qkv = self.qkv.forward(&self.norm1.forward(h));
        let width = qkv.dim(1) / 3;
        let [q, k, v] = [0, 1, 2].map(|part| qkv.slice(1, part * width, (part + 1) * width));
        let attended = self.heads.forward_both_ways([&q, &k, &v], positions, None);
        let h = h + self.proj.forward(&attended);
        let inner = gelu(&self.linear_fc1.forward(&self.norm2.forward(&h)), Gelu::Tanh);
        &h + self.linear_fc2.forward(&inner)
    }
}

/// A quarter of each head's numbers turn by the row, in pairs with another quarter; the others by
/// the column.
fn rope(head_dim: i32) -> Rope {
    let quarter = head_dim / 4;
    let own = |i: i32| 1.0 / THETA.powf((2 * i) as f32 / (2 * quarter) as f32);
    let frequencies: Vec<f32> = (0..2 * quarter).map(|i| own(i % quarter)).collect();
    let axes = (0..2 * quarter).map(|i| u8::from(i >= quarter)).collect();
    Rope { frequencies, axes, pairs: RopePairs::Halves, scale: 1.0 }
}

/// Patches that are merged, one after the other, to one feature.
struct Merger {
    norm: LayerNorm,
    /// Whether the norm is over merged patches, not over each.
    merges_first: bool,
    /// Numbers of the merged patches.
    inputs: i32,
    linear_fc1: Linear,
    linear_fc2: Linear,
}

impl Merger {
    fn load(c: &Config, w: &Weights, merges_first: bool) -> Result<Merger> {
        let merged = c.hidden_size * c.spatial_merge_size * c.spatial_merge_size;
        Ok(Merger {
            norm: w.layer_norm("norm", if merges_first { merged } else { c.hidden_size }, EPS)?,
            merges_first,
            inputs: merged,
            linear_fc1: w.linear_with("linear_fc1", merged, merged, true)?,
            linear_fc2: w.linear_with("linear_fc2", c.out_hidden_size, merged, true)?,
        })
    }

    fn forward(&self, h: &Array) -> Array {
        let merge = |x: &Array| x.reshape(&[-1, self.inputs]);
        let merged = match self.merges_first {
            true => self.norm.forward(&merge(h)),
            false => merge(&self.norm.forward(h)),
        };
        self.linear_fc2.forward(&gelu(&self.linear_fc1.forward(&merged), Gelu::Exact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_reach_from_the_first_entry_to_the_last() {
        assert_eq!(samples(3, 1), [[(0, 1.0), (1, 0.0)]]);
        assert_eq!(samples(3, 2), [[(0, 1.0), (1, 0.0)], [(2, 1.0), (2, 0.0)]]);
        let middle = samples(4, 3)[1];
        assert_eq!(middle, [(1, 0.5), (2, 0.5)]);
        for count in 1..200 {
            let all = samples(48, count);
            assert_eq!(all.len(), count);
            assert!(all.iter().all(|[a, b]| a.0 < 48 && b.0 < 48 && (0.0..=1.0).contains(&a.1)));
        }
    }

    #[test]
    fn half_of_a_heads_pairs_turn_by_the_row() {
        let rope = rope(16);
        assert_eq!(rope.axes, [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(rope.frequencies[..4], rope.frequencies[4..]);
        assert_eq!(rope.frequencies[..2], [1.0, 0.1]);
    }
}
