//! Statistics of the tensors read: sizes, formats, and the bytes that a token needs.

use std::collections::BTreeMap;

use mlx::{
    Dtype,
    quant::{Mode, Quantization},
};
use serde_json::Value;

use crate::api::{Gpu, WeightReads, WeightSummary};

/// Sums, in bytes unless stated otherwise.
#[derive(Default)]
pub(super) struct WeightStats {
    total: usize,
    parameters: usize,
    /// By format.
    formats: BTreeMap<String, usize>,
    /// The token embedding.
    embedding: usize,
    /// Other embeddings, read by rows.
    tables: usize,
    head: usize,
    experts: usize,
    /// The multi-token prediction head, which plain decoding does not read.
    mtp: usize,
    /// The vision tower, which steps do not read.
    visual: usize,
    /// Parameters of matrices and convolutions in layers, without experts.
    layer_parameters: usize,
    expert_parameters: usize,
}

/// The purpose of a tensor, by its canonical path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Head,
    Mtp,
    Visual,
    Embedding,
    Table,
    Experts,
    Layer,
}

impl Use {
    fn of(path: &str) -> Use {
        let parts: Vec<&str> = path.split('.').collect();
        match &parts[..] {
            ["lm_head", ..] => Use::Head,
            ["mtp", ..] => Use::Mtp,
            ["visual", ..] => Use::Visual,
            ["model", "embed_tokens", ..] => Use::Embedding,
            [.., part, _] if part.starts_with("embed_tokens") => Use::Table,
            _ if parts.contains(&"experts") => Use::Experts,
            _ => Use::Layer,
        }
    }
}

impl WeightStats {
    /// Adds a tensor at its canonical path.
    pub(super) fn add(&mut self, path: &str, dtype: Dtype, shape: &[i32]) {
        let elements = shape.iter().map(|&dim| dim as usize).product::<usize>();
        let bytes = elements * dtype.size();
        self.total += bytes;
        let purpose = Use::of(path);
        match purpose {
            Use::Head => self.head += bytes,
            Use::Mtp => self.mtp += bytes,
            Use::Visual => self.visual += bytes,
            Use::Embedding => self.embedding += bytes,
            Use::Table => self.tables += bytes,
            Use::Experts => self.experts += bytes,
            Use::Layer => {}
        }
        let part_of_codes = [".scales", ".biases"].iter().any(|end| path.ends_with(end));
        if dtype.is_float() && !part_of_codes {
            self.count(purpose, elements);
            *self.formats.entry(dtype.name().into()).or_default() += bytes;
        }
    }

    /// Adds the format of the quantised codes at a canonical path, and their number of parameters.
    pub(super) fn quantized(&mut self, path: &str, parameters: usize, q: Quantization) {
        self.count(Use::of(&format!("{path}.weight")), parameters);
        *self.formats.entry(describe(q)).or_default() += parameters * q.bits as usize / 8;
    }

    fn count(&mut self, purpose: Use, parameters: usize) {
        self.parameters += parameters;
        match purpose {
            Use::Layer => self.layer_parameters += parameters,
            Use::Experts => self.expert_parameters += parameters,
            Use::Head | Use::Mtp | Use::Visual | Use::Embedding | Use::Table => {}
        }
    }

    /// Bytes of all tensors.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// The summary; `config` is the text part of config.json.
    pub(super) fn summary(&self, config: &Value) -> WeightSummary {
        let format = self.formats.iter().max_by_key(|(_, bytes)| **bytes);
        WeightSummary {
            parameters: self.parameters,
            format: format.map_or_else(String::new, |(format, _)| format.clone()),
            precision: (!mlx::on_gpu()).then(nn::precision),
            reads: self.reads(config),
            gpu: mlx::gpu().map(|mlx::Gpu { name, memory_bandwidth }| Gpu { name, memory_bandwidth }),
            active_parameters: self
                .expert_share(config)
                .map(|share| self.layer_parameters + (self.expert_parameters as f64 * share) as usize),
        }
    }

    /// The part of all experts that a token takes; `None` if config.json does not say it.
    fn expert_share(&self, config: &Value) -> Option<f64> {
        if self.experts == 0 {
            return Some(0.0);
        }
        let number = |keys: &[&str]| keys.iter().find_map(|key| config.get(key)?.as_u64());
        let chosen = number(&["num_experts_per_tok", "num_experts_per_token", "top_k_experts"])?;
        let all = number(&["num_experts", "num_local_experts", "n_routed_experts"])?;
        Some(chosen as f64 / all as f64)
    }

    fn reads(&self, config: &Value) -> Option<WeightReads> {
        // With a separate head the embedding is only read by rows.
        let looked_up = if self.head > 0 { self.embedding } else { 0 } + self.tables;
        let every_step = self.total - looked_up - self.experts - self.mtp - self.visual;
        let share = self.expert_share(config)?;
        Some(WeightReads { every_step, per_token: (self.experts as f64 * share) as usize })
    }
}

fn describe(q: Quantization) -> String {
    match q.mode {
        Mode::Affine => format!("affine {}-bit, group {}", q.bits, q.group_size),
        mode => mode.name().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(tensors: &[(&str, &[i32])], config: Value, expected: Option<[usize; 2]>) {
        let mut stats = WeightStats::default();
        tensors.iter().for_each(|(path, shape)| stats.add(path, Dtype::Bfloat16, shape));
        let reads = stats.summary(&config).reads.map(|reads| [reads.every_step, reads.per_token]);
        assert_eq!(reads, expected, "{tensors:?}");
    }

    #[test]
    fn weight_reads_per_token_exclude_embeddings_and_unrouted_experts() {
        let embedding: (&str, &[i32]) = ("model.embed_tokens.weight", &[100, 8]);
        let layer: (&str, &[i32]) = ("model.layers.0.mlp.up_proj.weight", &[4, 8]);
        check(&[embedding, layer], json!({}), Some([1600 + 64, 0]));
        check(&[embedding, layer, ("lm_head.weight", &[100, 8])], json!({}), Some([1600 + 64, 0]));
        check(&[embedding, ("model.embed_tokens_per_layer.weight", &[100, 8])], json!({}), Some([1600, 0]));
        let experts: (&str, &[i32]) = ("model.layers.0.mlp.experts.up_proj.weight", &[10, 4, 8]);
        let config = json!({ "num_experts_per_tok": 2, "num_experts": 10 });
        check(&[layer, experts], config, Some([64, 128]));
        check(&[layer, experts], json!({}), None);
        let head: (&str, &[i32]) = ("mtp.layers.0.mlp.experts.up_proj.weight", &[10, 4, 8]);
        check(&[layer, head], json!({}), Some([64, 0]));
        let tower: (&str, &[i32]) = ("visual.blocks.0.attn.proj.weight", &[4, 8]);
        check(&[layer, tower], json!({}), Some([64, 0]));
    }

    #[test]
    fn weight_format_is_that_of_most_bytes() {
        let mut stats = WeightStats::default();
        stats.add("model.norm.weight", Dtype::Bfloat16, &[8]);
        stats.add("a.weight", Dtype::Uint32, &[4, 16]);
        stats.add("a.scales", Dtype::Bfloat16, &[4, 2]);
        stats.add("a.biases", Dtype::Bfloat16, &[4, 2]);
        stats.quantized("a", 512, Quantization { mode: Mode::Affine, group_size: 64, bits: 4 });
        let summary = stats.summary(&json!({}));
        assert_eq!((summary.parameters, &*summary.format), (520, "affine 4-bit, group 64"));
        assert_eq!(summary.active_parameters, Some(520), "none is in a table or an expert");
        assert_eq!(summary.reads.map(|reads| reads.every_step), Some(16 + 256 + 32));
    }
}
