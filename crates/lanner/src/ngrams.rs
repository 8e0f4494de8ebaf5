//! What is loaded beside a model to draft for it. Which n-gram table goes with which model: token ids mean something under
//! one tokenizer alone.

use std::sync::Arc;

use chat::Tokenizer;
use engine::{Options, ngrams::Table};
use ring::digest::{Context, SHA256};

use crate::{
    config::ModelConfig,
    draft,
    model::{self, OpenError},
    source::Source,
};

/// How to load the model at `source`, with the n-gram table and the draft model that the user named.
///
/// # Errors
/// One of them cannot be read, or is for another tokenizer.
pub fn options(config: &ModelConfig, source: &Source) -> Result<Options, OpenError> {
    let mut options = config.options.clone();
    if let Some(path) = &config.ngram_table {
        let tokenizer = model::tokenizer(&source.location)?;
        options.ngram_table = Some(Arc::new(Table::open(path, &fingerprint(&tokenizer), &source.name)?));
    }
    options.draft_model = draft::checkpoint(config, source)?;
    Ok(options)
}

/// The same for tokenizers with the same tokens: SHA-256 over ids and tokens.
pub fn fingerprint(tokenizer: &Tokenizer) -> String {
    let mut hash = Context::new(&SHA256);
    for (id, token) in tokenizer.vocabulary() {
        hash.update(&id.to_le_bytes());
        hash.update(&(token.len() as u64).to_le_bytes());
        hash.update(token.as_bytes());
    }
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
