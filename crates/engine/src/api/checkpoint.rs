//! Where a model's files come from.

use std::path::PathBuf;

use mlx::quant::Quantization;
use serde_json::Value;

/// The source of a model's files.
#[derive(Clone, Debug)]
pub enum Checkpoint {
    /// A Hugging Face folder: config.json, safetensors, optionally generation_config.json.
    Folder(PathBuf),
    /// One safetensors file with all weights; config.json and optionally generation_config.json lie
    /// beside it.
    File(PathBuf),
    /// Files compiled into the program.
    Builtin {
        /// Text of config.json.
        config: &'static str,
        /// Text of generation_config.json, if the model has one.
        generation_config: Option<&'static str>,
        /// Bytes of a safetensors file.
        weights: &'static [u8],
    },
    /// Random weights for a config.json, in memory: the size and speed of a model without its
    /// files.
    Random {
        /// Content of config.json.
        config: Value,
        /// `None` leaves everything in bfloat16.
        quantization: Option<Quantization>,
    },
}
