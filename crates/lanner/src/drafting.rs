//! Drafters that are loaded beside a model: an n-gram table, a draft model. Token ids have a
//! meaning under one tokenizer alone, so both must have the model's.

use std::sync::Arc;

use chat::Tokenizer;
use engine::{
    Checkpoint, Options,
    ngrams::{NgramTable, NgramTableError},
};
use ring::digest::{Context, SHA256};

use crate::{
    config::ModelConfig,
    model_files,
    source::{Source, SourceError},
};

/// Texts by which tokenizers differ that have the same tokens, but other merges or other rules for
/// words, numbers and spaces.
const PROBES: [&str; 6] = [
    "The quick brown fox, it's said, jumped over 12 lazy dogs in 1987.",
    "fn main() {\n    let total: u64 = xs.iter().map(|x| x * 2).sum();\n\n\t}\n",
    "{\"name\": \"Zürich\", \"values\": [0.5, -1e10, 314159265]}",
    "naïve café, Ελληνικά, русский, 日本語の文章, 한국어, 🦅🏽",
    "   leading,  double   and trailing spaces   ",
    "internationalisation antidisestablishmentarianism HTTPServerError snake_case_name",
];

#[derive(Debug, thiserror::Error)]
pub enum DraftingError {
    #[error(transparent)]
    Table(#[from] NgramTableError),
    #[error("the draft model: {0}")]
    Source(SourceError),
    #[error("the draft model: {0}")]
    DraftTokenizer(chat::Error),
    #[error(transparent)]
    Tokenizer(#[from] chat::Error),
    #[error("{draft} cannot draft for {model}: their tokenizers differ: {difference}")]
    TokenizersDiffer { model: String, draft: String, difference: String },
}

/// The options to load the model at `source` with: the configured ones, n-gram table and draft
/// model included.
///
/// # Errors
/// The table or the draft model cannot be read, or is for another tokenizer.
pub(crate) fn options(config: &ModelConfig, source: &Source) -> Result<Options, DraftingError> {
    let mut options = config.options.clone();
    if let Some(path) = &config.ngram_table {
        let tokenizer = model_files::tokenizer(&source.location)?;
        options.ngram_table = Some(Arc::new(NgramTable::open(path, &fingerprint(&tokenizer), &source.name)?));
    }
    if let Some(name) = &config.draft_model {
        options.draft_model = Some(draft_model(name, config, source)?);
    }
    Ok(options)
}

/// The checkpoint of the draft model called `name`.
fn draft_model(name: &str, config: &ModelConfig, source: &Source) -> Result<Checkpoint, DraftingError> {
    let draft = Source::find(Some(name), &config.hub).map_err(DraftingError::Source)?;
    let checkpoint = model_files::checkpoint(draft.location.clone());
    // A block drafter takes the model's tokens and has no tokenizer.
    if draft.location != source.location && !checkpoint.is_block_drafter() {
        let own = model_files::tokenizer(&source.location)?;
        let other = model_files::tokenizer(&draft.location).map_err(DraftingError::DraftTokenizer)?;
        if let Some(difference) = difference(&own, &other)? {
            let (model, draft) = (source.name.clone(), draft.name);
            return Err(DraftingError::TokenizersDiffer { model, draft, difference });
        }
    }
    Ok(checkpoint)
}

/// The first difference between two tokenizers, in words.
fn difference(own: &Tokenizer, other: &Tokenizer) -> Result<Option<String>, chat::Error> {
    if fingerprint(own) != fingerprint(other) {
        let (own, other) = (own.vocabulary(), other.vocabulary());
        let differs = own.iter().zip(&other).find(|(own, other)| own != other);
        return Ok(Some(match differs {
            Some(((id, token), _)) => format!("token {id} is {token:?} to the model alone"),
            None => format!("{} tokens and {}", own.len(), other.len()),
        }));
    }
    for probe in PROBES {
        if own.encode(probe, false)? != other.encode(probe, false)? {
            return Ok(Some(format!("they split {probe:?} into different tokens")));
        }
    }
    Ok(None)
}

/// SHA-256 of a tokenizer's ids and tokens, in hexadecimal.
pub(crate) fn fingerprint(tokenizer: &Tokenizer) -> String {
    let mut hash = Context::new(&SHA256);
    for (id, token) in tokenizer.vocabulary() {
        hash.update(&id.to_le_bytes());
        hash.update(&(token.len() as u64).to_le_bytes());
        hash.update(token.as_bytes());
    }
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
