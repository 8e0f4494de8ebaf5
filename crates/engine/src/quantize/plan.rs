//! The plan: an action for every tensor, from names, shapes and types alone.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use mlx::{
    Dtype,
    quant::{Mode, Quantization},
};
use serde_json::Value;

use super::{config, error::QuantizeError};
use crate::{
    api::Checkpoint,
    models,
    weights::{Action, Recipe, WeightFiles, action_for},
};

/// How a checkpoint is to be quantised.
pub struct Plan {
    /// Format of quantised tensors.
    pub quantization: Quantization,
    /// Tensors of the result, in the order in which they are written.
    pub tensors: Vec<PlannedTensor>,
    /// Tensors that are dropped, each with its shape and the reason.
    pub dropped: Vec<(String, Vec<usize>, &'static str)>,
    /// Folder of tokenizers and other companions, if they are files.
    pub(super) companions: Option<PathBuf>,
    pub(super) config: Value,
    pub(super) has_mtp: bool,
    pub(super) files: WeightFiles,
}

/// One tensor of the result.
pub struct PlannedTensor {
    /// Ends in `.weight` if it is quantised.
    pub name: String,
    /// Shape before packing.
    pub shape: Vec<usize>,
    /// Type in the source.
    pub dtype: Dtype,
    /// Whether it is quantised.
    pub action: Action,
    pub(super) recipe: Recipe,
    /// Whether it goes to a file that mlx-lm does not read.
    pub(super) in_mtp_file: bool,
}

/// Families whose MTP heads mlx-lm neither drops nor runs.
const MTP_UNKNOWN_TO_MLX_LM: &[&str] = &["qwen3_next", "deepseek_v3", "kimi_k2"];

impl Plan {
    /// Reads the headers of a checkpoint.
    ///
    /// # Errors
    /// It cannot be read, its family is unknown, or it is quantised already.
    pub fn new(source: &Checkpoint, quantization: Quantization) -> Result<Plan, QuantizeError> {
        let config = source.config()?;
        models::family(&config)?;
        check_not_quantized(&config)?;
        let plan = Plan::of(config, WeightFiles::new(source.weight_files()?)?, quantization)?;
        let companions = match source {
            Checkpoint::Folder(folder) => Some(folder.clone()),
            Checkpoint::File(file) => file.parent().map(Path::to_path_buf),
            Checkpoint::Builtin { .. } | Checkpoint::Random { .. } => None,
        };
        Ok(Plan { companions, ..plan })
    }

    /// Plan for a config.json and headers; see [`new`](Plan::new).
    pub(crate) fn of(
        config: Value,
        files: WeightFiles,
        quantization: Quantization,
    ) -> Result<Plan, QuantizeError> {
        let family = models::family(&config)?;
        check_not_quantized(&config)?;
        let text = models::text_config(&config);
        let (names, dropped) = split_dropped(&config, files.names());
        let is_mtp =
            |name: &str| name.split('.').any(|part| part == "mtp") || models::is_nextn_layer(text, name);
        let in_mtp_file = MTP_UNKNOWN_TO_MLX_LM.contains(&config["model_type"].as_str().unwrap_or_default());
        let mut tensors = Vec::new();
        for (name, recipe) in family.layout(text).to_copy(&files, &names, is_mtp)? {
            let dtype = files.dtype(&recipe.sources[0])?;
            if !dtype.is_float() && name.ends_with(".weight") {
                return Err(QuantizeError::AlreadyQuantized(format!("{name} is {}", dtype.name())));
            }
            let action = match is_mtp(&name) {
                true => Action::Skip("MTP head"),
                false => action_for(&name, &recipe.shape, dtype, quantization),
            };
            let (shape, in_mtp_file) = (recipe.shape.clone(), in_mtp_file && is_mtp(&name));
            tensors.push(PlannedTensor { name, shape, dtype, action, recipe, in_mtp_file });
        }
        let with_shape = |(name, reason): (String, _)| {
            let shape = files.shape(&name).to_vec();
            (name, shape, reason)
        };
        let dropped = dropped.into_iter().map(with_shape).collect();
        let has_mtp = names.iter().any(|name| is_mtp(name));
        Ok(Plan { companions: None, quantization, tensors, dropped, config, has_mtp, files })
    }

    /// The tensors that are written.
    pub(crate) fn stored(&self) -> Vec<StoredTensor> {
        self.tensors.iter().flat_map(|tensor| tensor.stored(self.quantization)).collect()
    }

    /// config.json of the result.
    pub(crate) fn result_config(&self) -> Value {
        config::config(&self.config, self.quantization, self.has_mtp)
    }

    /// Bytes of all source tensors that are read.
    pub fn source_bytes(&self) -> usize {
        self.tensors.iter().map(PlannedTensor::source_bytes).sum()
    }
}

impl PlannedTensor {
    /// Bytes in the source's type.
    pub fn source_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// The tensors that are written for it.
    pub(super) fn stored(&self, q: Quantization) -> Vec<StoredTensor> {
        let stored = |name: String, dtype, last: Option<usize>| {
            let mut shape = self.shape.clone();
            if let (Some(axis), Some(last)) = (shape.last_mut(), last) {
                *axis = last;
            }
            StoredTensor { name, dtype, shape, in_mtp_file: self.in_mtp_file }
        };
        if self.action != Action::Quantize {
            return vec![stored(self.name.clone(), self.dtype, None)];
        }
        let (bits, group) = (q.bits as usize, q.group_size as usize);
        let inputs = self.shape.last().copied().unwrap_or(0);
        let path = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        let weight = stored(self.name.clone(), Dtype::Uint32, Some(inputs * bits / 32));
        let part = |name: &str, dtype| stored(format!("{path}.{name}"), dtype, Some(inputs / group));
        match q.mode {
            Mode::Affine => vec![weight, part("scales", self.dtype), part("biases", self.dtype)],
            _ => vec![weight, part("scales", Dtype::Uint8)],
        }
    }
}

/// A tensor in a file of the result.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub in_mtp_file: bool,
}

impl StoredTensor {
    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// The tensors to copy, and those that are dropped with the reason.
fn split_dropped(config: &Value, names: Vec<String>) -> (Vec<String>, Vec<(String, &'static str)>) {
    let text = models::text_config(config);
    let tied = ["tie_word_embeddings", "tie_embedding"]
        .iter()
        .any(|key| text.get(key).or_else(|| config.get(key)) == Some(&Value::Bool(true)));
    let reason = |name: &str| {
        if name.ends_with("rotary_emb.inv_freq") {
            return Some("computed while loading");
        }
        (tied && name.ends_with("lm_head.weight")).then_some("tied to the embedding")
    };
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for name in names {
        match reason(&name) {
            Some(reason) => dropped.push((name, reason)),
            None => kept.push(name),
        }
    }
    (kept, dropped)
}

/// Fails on quantised sources: a second quantisation loses more than one of the original.
fn check_not_quantized(config: &Value) -> Result<(), QuantizeError> {
    let keys = ["quantization", "quantization_config", "compression_config"];
    let places = [Some(config), config.get("text_config")];
    for place in places.into_iter().flatten() {
        if let Some(key) = keys.into_iter().find(|key| place.get(key).is_some_and(|value| !value.is_null())) {
            return Err(QuantizeError::AlreadyQuantized(format!("its config.json has {key}")));
        }
    }
    Ok(())
}

/// A format by its mode, and by bits and group size where the mode leaves them open.
///
/// # Errors
/// MLX has no such format; the error lists its formats.
pub fn quantization(
    mode: Mode,
    bits: Option<i32>,
    group_size: Option<i32>,
) -> Result<Quantization, QuantizeError> {
    let default = mode.fixed().unwrap_or(Quantization { mode, group_size: 64, bits: 4 });
    let requested = Quantization {
        mode,
        bits: bits.unwrap_or(default.bits),
        group_size: group_size.unwrap_or(default.group_size),
    };
    let (known_bits, known_groups): (BTreeSet<i32>, BTreeSet<i32>) = match mode {
        Mode::Affine => ([2, 3, 4, 5, 6, 8].into(), [32, 64, 128].into()),
        _ => ([default.bits].into(), [default.group_size].into()),
    };
    let known = known_bits.contains(&requested.bits) && known_groups.contains(&requested.group_size);
    known.then_some(requested).ok_or_else(|| QuantizeError::NoSuchFormat {
        requested,
        bits: listed(&known_bits),
        groups: listed(&known_groups),
    })
}

fn listed(numbers: &BTreeSet<i32>) -> String {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}
