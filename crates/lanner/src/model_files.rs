//! The parts of a model on disk or built in, each opened by itself: weights, tokenizer, chat
//! template.

use std::path::Path;

use chat::{Template, Tokenizer};
use engine::{Checkpoint, Pooling};
use serde_json::Value;

use crate::{
    builtin::{BUILTIN, Builtin},
    pooling,
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

/// How its embeddings are pooled.
///
/// # Errors
/// They are made in a way that is not supported.
pub(crate) fn pooling(location: &ModelLocation) -> Result<Pooling, String> {
    folder(location).map_or(Ok(Pooling::Mean), pooling::from_folder)
}

/// The end-of-sequence token that tokenizer_config.json names, if any.
pub(crate) fn eos_ids(tokenizer: &Tokenizer) -> Vec<u32> {
    let id = tokenizer.eos_token().and_then(|token| tokenizer.token_to_id(token));
    id.into_iter().collect()
}

/// The folder that holds config.json and the tokenizer; `None` for the built-in model.
fn folder(location: &ModelLocation) -> Option<&Path> {
    match location {
        ModelLocation::Builtin => None,
        ModelLocation::Folder(folder) => Some(folder),
        ModelLocation::File(file) => Some(file.parent().unwrap_or(file)),
    }
}
