//! The parts of a model on disk or built in, each opened by itself: weights, tokenizer, chat
//! template.

use std::{fs, path::Path};

use chat::{Template, Tokenizer};
use engine::{Checkpoint, Pooling};
use serde_json::Value;

use crate::{
    builtin::{BUILTIN, Builtin},
    pooling::{self, EmbeddingHead},
    source::ModelLocation,
};

pub(crate) fn checkpoint(location: ModelLocation) -> Checkpoint {
    match location {
        ModelLocation::Builtin => {
            let Builtin { config, generation_config, weights, .. } = BUILTIN;
            Checkpoint::Builtin { config, generation_config: Some(generation_config), weights }
        }
        ModelLocation::Folder(folder) => Checkpoint::Folder(folder),
        ModelLocation::File(file) => Checkpoint::File(file),
    }
}

/// # Errors
/// There is no tokenizer, or it cannot be read.
pub(crate) fn tokenizer(location: &ModelLocation) -> Result<Tokenizer, chat::Error> {
    match folder(location) {
        None => {
            Tokenizer::from_bytes(BUILTIN.tokenizer.as_bytes(), Some(BUILTIN.tokenizer_config.as_bytes()))
        }
        Some(folder) => Tokenizer::from_dir(folder),
    }
}

/// The chat template, if there is one.
///
/// # Errors
/// It cannot be read.
pub(crate) fn template(location: &ModelLocation) -> Result<Option<Template>, chat::Error> {
    let Some(folder) = folder(location) else {
        let config: Value = serde_json::from_str(BUILTIN.tokenizer_config).unwrap_or_default();
        let special = ["bos_token", "eos_token"].map(|name| (name.to_owned(), config[name].clone()));
        let special = special.into_iter().filter(|(_, token)| token.is_string());
        return Template::new(BUILTIN.chat_template, special.collect()).map(Some);
    };
    match Template::from_dir(folder) {
        Ok(template) => Ok(Some(template)),
        Err(chat::Error::NoTemplate(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How its embeddings are made.
///
/// # Errors
/// They are made in a way that is not supported.
pub(crate) fn embedding_head(location: &ModelLocation) -> Result<EmbeddingHead, String> {
    let Some(folder) = folder(location) else { return Ok(EmbeddingHead::new(Pooling::Mean)) };
    let config = config(location).unwrap_or_default();
    let hidden_size = config["hidden_size"].as_u64().and_then(|size| usize::try_from(size).ok());
    pooling::from_folder(folder)?.check(hidden_size)
}

/// The end-of-sequence token that tokenizer_config.json names, if any.
pub(crate) fn eos_ids(tokenizer: &Tokenizer) -> Vec<u32> {
    let id = tokenizer.eos_token().and_then(|token| tokenizer.token_to_id(token));
    id.into_iter().collect()
}

/// The texts of preprocessor_config.json and processor_config.json, if they can be read.
pub(crate) fn processor_configs(location: &ModelLocation) -> [Option<String>; 2] {
    let Some(folder) = folder(location) else { return [Some(BUILTIN.preprocessor_config.to_owned()), None] };
    let read = |name: &str| String::from_utf8(files::read(&folder.join(name), files::SETTINGS).ok()?).ok();
    ["preprocessor_config.json", "processor_config.json"].map(read)
}

/// config.json, if it can be read.
pub(crate) fn config(location: &ModelLocation) -> Option<Value> {
    match folder(location) {
        None => serde_json::from_str(BUILTIN.config).ok(),
        Some(folder) => {
            serde_json::from_slice(&files::read(&folder.join("config.json"), files::SETTINGS).ok()?).ok()
        }
    }
}

/// Bytes of the weights' files.
pub(crate) fn weight_bytes(location: &ModelLocation) -> u64 {
    let size = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    match location {
        ModelLocation::Builtin => BUILTIN.weights.len() as u64,
        ModelLocation::File(file) => size(file),
        ModelLocation::Folder(folder) => {
            let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let weights = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
            weights.map(|path| size(&path)).sum()
        }
    }
}

/// The folder that holds config.json and the tokenizer; `None` for the built-in model.
fn folder(location: &ModelLocation) -> Option<&Path> {
    match location {
        ModelLocation::Builtin => None,
        ModelLocation::Folder(folder) => Some(folder),
        ModelLocation::File(file) => Some(file.parent().unwrap_or(file)),
    }
}
