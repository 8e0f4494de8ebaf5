//! The files of a checkpoint: their paths and config.json; [`Weights`] reads the tensors.
//!
//! [`Weights`]: crate::weights::Weights

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use mlx::load::Safetensors;
use serde_json::Value;

use crate::{
    api::Checkpoint,
    error::{LoadError, Result},
    generation_config::GenerationConfig,
    models,
    weights::{Random, has_mxfp4_experts},
};

impl Checkpoint {
    /// config.json.
    pub(crate) fn config(&self) -> Result<Value> {
        match self {
            Checkpoint::Folder(folder) => {
                if !folder.is_dir() {
                    return Err(fail(folder, "there is no such folder".into()));
                }
                read_json(&folder.join("config.json"), files::SETTINGS)
            }
            Checkpoint::File(file) => read_json(&file.with_file_name("config.json"), files::SETTINGS),
            Checkpoint::Builtin { config, .. } => parse("built-in config.json", config),
            // `quantization` applies, not that of config.json.
            Checkpoint::Random { config, .. } => Ok(without_quantization(config)),
        }
    }

    /// Whether it is a block drafter (DFlash), which drafts for another model.
    pub fn is_block_drafter(&self) -> bool {
        self.config().is_ok_and(|config| models::is_dflash(&config))
    }

    /// Content of generation_config.json, if the model has one.
    pub(crate) fn generation_config(&self) -> Result<GenerationConfig> {
        let optional = |path: PathBuf| {
            let config = path.exists().then(|| read_json(&path, files::SETTINGS)).transpose()?;
            GenerationConfig::of(&path.display().to_string(), config.as_ref())
        };
        match self {
            Checkpoint::Folder(folder) => optional(folder.join("generation_config.json")),
            Checkpoint::File(file) => optional(file.with_file_name("generation_config.json")),
            Checkpoint::Builtin { generation_config, .. } => {
                let name = "built-in generation_config.json";
                let config = generation_config.map(|text| parse(name, text)).transpose()?;
                GenerationConfig::of(name, config.as_ref())
            }
            Checkpoint::Random { .. } => GenerationConfig::of("", None),
        }
    }

    /// Whether config.json or generation_config.json names an end-of-sequence token. mlx-lm uses
    /// the tokenizer's only if neither does. [`start`](crate::start) reports files that cannot be
    /// read.
    pub fn names_eos(&self) -> bool {
        let own = |config: &Value| {
            let known = |config: &Value| config.get("eos_token_id").is_some_and(|ids| !ids.is_null());
            known(models::text_config(config)) || known(config)
        };
        let (config, generation) = (self.config(), self.generation_config());
        config.map_or(true, |config| own(&config))
            || generation.map_or(true, |config| !config.eos_ids.is_empty())
    }

    /// How random weights are generated, for [`Checkpoint::Random`].
    pub(crate) fn random(&self) -> Option<Random> {
        match self {
            Checkpoint::Random { quantization, config } => {
                let mxfp4_experts = has_mxfp4_experts(config);
                Some(Random { quantization: *quantization, mxfp4_experts })
            }
            _ => None,
        }
    }

    /// Paths of the weight files; none for weights that are not in files.
    pub(crate) fn weight_paths(&self) -> Result<Vec<PathBuf>> {
        match self {
            Checkpoint::Folder(folder) => weight_paths(folder),
            Checkpoint::File(file) => Ok(vec![file.clone()]),
            Checkpoint::Builtin { .. } | Checkpoint::Random { .. } => Ok(vec![]),
        }
    }

    /// The checked, open weight files.
    pub(crate) fn weight_files(&self) -> Result<Vec<Safetensors>> {
        match self {
            Checkpoint::Folder(_) | Checkpoint::File(_) => {
                self.weight_paths()?.iter().map(|path| Ok(Safetensors::open(path)?)).collect()
            }
            Checkpoint::Builtin { weights, .. } => {
                Ok(vec![Safetensors::from_static("built-in model.safetensors", *weights)?])
            }
            Checkpoint::Random { .. } => Err(LoadError::Options("made-up weights are in no file".into())),
        }
    }
}

fn without_quantization(config: &Value) -> Value {
    let mut config = config.clone();
    for key in ["quantization", "quantization_config"] {
        config.as_object_mut().into_iter().for_each(|map| drop(map.remove(key)));
    }
    config
}

/// The files the index names, or else model.safetensors, or else `model-x-of-n.safetensors`, or
/// else the folder's only safetensors file.
fn weight_paths(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join("model.safetensors.index.json");
    if index.exists() {
        let map = read_json(&index, files::INDEX)?;
        let names = indexed_names(&map).map_err(|message| fail(&index, message))?;
        return names.iter().map(|name| existing(folder.join(name), &index)).collect();
    }
    let entries = fs::read_dir(folder).map_err(|e| fail(folder, e.to_string()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(whole) = paths.iter().find(|path| name(path) == "model.safetensors") {
        return Ok(vec![whole.clone()]);
    }
    let is_shard = |path: &PathBuf| name(path).starts_with("model-") && name(path).contains("-of-");
    if paths.iter().any(is_shard) {
        paths.retain(is_shard);
        return Ok(paths);
    }
    match &paths[..] {
        [] => Err(fail(folder, "there is no safetensors file in it".into())),
        [_] => Ok(paths),
        _ => Err(fail(
            folder,
            "there are several safetensors files in it and no index: name the one to load".into(),
        )),
    }
}

/// File names in an index.
///
/// # Errors
/// There is no `weight_map`, or it names a file outside the folder.
pub(crate) fn indexed_names(index: &Value) -> std::result::Result<BTreeSet<String>, String> {
    let map = index.get("weight_map").and_then(Value::as_object).ok_or("there is no weight_map in it")?;
    let name = |(tensor, file): (&String, &Value)| match file.as_str() {
        Some(name) if stays_inside(name) => Ok(name.to_owned()),
        Some(name) => Err(format!(
            "it names the file `{}`, which is not in its folder: take another copy of the model",
            shown(name)
        )),
        None => Err(format!("it names no file for the tensor {}: download the model again", shown(tensor))),
    };
    map.iter().map(name).collect()
}

/// A name from an untrusted file, escaped and shortened for an error message.
fn shown(name: &str) -> String {
    name.chars().take(200).flat_map(char::escape_debug).collect()
}

/// Whether the path stays in a folder that it is joined to.
fn stays_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn existing(path: PathBuf, index: &Path) -> Result<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    Err(fail(&path, format!("the file is missing; {} names it: download the model again", index.display())))
}

fn read_json(path: &Path, most: u64) -> Result<Value> {
    let text = files::read_text(path, most).map_err(|e| fail(path, e.to_string()))?;
    parse(&path.display().to_string(), &text)
}

fn parse(name: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .map_err(|e| LoadError::File { path: name.into(), message: format!("not valid JSON: {e}") })
}

fn fail(path: &Path, message: String) -> LoadError {
    LoadError::File { path: path.display().to_string(), message }
}
