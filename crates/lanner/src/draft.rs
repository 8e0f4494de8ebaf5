//! Which model drafts for which: they must have the same tokens.

use chat::Tokenizer;
use engine::Checkpoint;

use crate::{
    config::ModelConfig,
    model::{self, OpenError},
    ngrams::fingerprint,
    source::Source,
};

/// Cut alike by tokenizers with the same merges and the same rules for words, numbers and spaces.
const PROBES: [&str; 6] = [
    "The quick brown fox, it's said, jumped over 12 lazy dogs in 1987.",
    "fn main() {\n    let total: u64 = xs.iter().map(|x| x * 2).sum();\n\n\t}\n",
    "{\"name\": \"Zürich\", \"values\": [0.5, -1e10, 314159265]}",
    "naïve café, Ελληνικά, русский, 日本語の文章, 한국어, 🦅🏽",
    "   leading,  double   and trailing spaces   ",
    "internationalisation antidisestablishmentarianism HTTPServerError snake_case_name",
];

/// The draft model that the user named for the model at `source`, if any.
///
/// # Errors
/// It is not there, or has another tokenizer.
pub fn checkpoint(config: &ModelConfig, source: &Source) -> Result<Option<Checkpoint>, OpenError> {
    let Some(name) = &config.draft_model else { return Ok(None) };
    let broken = |error: OpenError| OpenError::Draft(Box::new(error));
    let draft = Source::find(Some(name), &config.hub).map_err(|error| broken(error.into()))?;
    // A block drafter takes the model's tokens, and has no tokenizer.
    if draft.location != source.location && !model::checkpoint(draft.location.clone()).is_block_drafter() {
        let own = model::tokenizer(&source.location)?;
        let other = model::tokenizer(&draft.location).map_err(|error| broken(error.into()))?;
        if let Some(difference) = difference(&own, &other)? {
            let (model, draft) = (source.name.clone(), draft.name);
            return Err(OpenError::OtherTokens { model, draft, difference });
        }
    }
    Ok(Some(model::checkpoint(draft.location)))
}

/// What tells two tokenizers apart, if anything does.
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
            return Ok(Some(format!("they cut {probe:?} in other places")));
        }
    }
    Ok(None)
}
