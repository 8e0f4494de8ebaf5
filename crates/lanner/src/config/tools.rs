//! Arguments of the commands that need no running model: models, rm, cache, quantize, ngram.

use std::path::PathBuf;

use engine::quantize::{Mode, Quantization, QuantizeError};

use super::{error::ConfigError, model::disk_cache_folder};
use crate::cli::{
    CacheArgs, DiskCacheAction, DiskCacheArgs, ModelsArgs, NgramBuildArgs, QuantizationMode, QuantizeArgs,
};

pub enum ModelsConfig {
    Catalog,
    Json,
    Table,
}

pub struct ShowConfig {
    pub model: String,
    pub json: bool,
}

pub struct RmConfig {
    pub model: String,
    pub yes: bool,
}

pub struct DiskCacheConfig {
    pub folder: PathBuf,
    pub action: DiskCacheAction,
    pub json: bool,
}

pub struct QuantizeConfig {
    /// Name as the user wrote it.
    pub source: String,
    /// `None`: only show what would be written.
    pub out: Option<PathBuf>,
    pub quantization: Quantization,
    pub verify: bool,
    /// Text to measure perplexity on.
    pub text: Option<PathBuf>,
    pub json: bool,
}

pub struct NgramConfig {
    pub corpus: Vec<PathBuf>,
    pub out: Option<PathBuf>,
    pub order: usize,
    pub min_count: u32,
    pub json: bool,
}

impl ModelsConfig {
    pub fn new(args: &ModelsArgs) -> ModelsConfig {
        match (args.catalog, args.json) {
            (true, _) => ModelsConfig::Catalog,
            (false, true) => ModelsConfig::Json,
            (false, false) => ModelsConfig::Table,
        }
    }
}

impl DiskCacheConfig {
    pub fn new(args: DiskCacheArgs, file: CacheArgs) -> Result<DiskCacheConfig, ConfigError> {
        let folder = args.cache_dir.or(file.cache_dir).or_else(disk_cache_folder);
        let folder = folder.ok_or(ConfigError::NoCacheDir)?;
        Ok(DiskCacheConfig { folder, action: args.action, json: args.json })
    }
}

impl QuantizeConfig {
    pub fn new(args: QuantizeArgs) -> Result<QuantizeConfig, ConfigError> {
        Ok(QuantizeConfig {
            source: args.source,
            out: args.out.filter(|_| !args.dry_run),
            quantization: quantization(args.mode, args.bits, args.group_size)?,
            verify: args.verify,
            text: args.text,
            json: args.json,
        })
    }
}

impl NgramConfig {
    pub fn new(args: NgramBuildArgs) -> NgramConfig {
        let NgramBuildArgs { corpus, out, order, min_count, json, .. } = args;
        NgramConfig { corpus, out, order: order.into(), min_count, json }
    }
}

pub(super) fn quantization(
    mode: QuantizationMode,
    bits: Option<i32>,
    group_size: Option<i32>,
) -> Result<Quantization, QuantizeError> {
    let mode = match mode {
        QuantizationMode::Affine => Mode::Affine,
        QuantizationMode::Mxfp4 => Mode::Mxfp4,
        QuantizationMode::Mxfp8 => Mode::Mxfp8,
        QuantizationMode::Nvfp4 => Mode::Nvfp4,
    };
    engine::quantize::quantization(mode, bits, group_size)
}
