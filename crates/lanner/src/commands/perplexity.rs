//! Perplexity of a model on a text.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use engine::{Engine, Event, Request, RequestError, quantize::QuantizeError};

use super::CommandError;
use crate::{
    config::ModelConfig,
    loading::OpenError,
    model::{Model, PromptError},
    model_files,
    source::ModelLocation,
};

/// Tokens of a chunk; each is predicted from those before it in the chunk.
const CHUNK: usize = 512;
/// Fewest tokens for a meaningful result.
const MIN_TOKENS: usize = 32;

pub(super) struct Perplexity {
    pub value: f64,
    /// Predicted tokens.
    pub tokens: usize,
}

/// The text of a file, checked to be long enough with the tokenizer of the model at `location`.
///
/// # Errors
/// It cannot be read or encoded, or is too short.
pub(super) fn read_text(location: &ModelLocation, path: &Path) -> Result<String, CommandError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| CommandError::Read { path: path.into(), error })?;
    let tokenizer = model_files::tokenizer(location).map_err(OpenError::from)?;
    let tokens = tokenizer.encode(&text, true).map_err(PromptError::from)?.len();
    if tokens < MIN_TOKENS { Err(CommandError::ShortText { tokens, least: MIN_TOKENS }) } else { Ok(text) }
}

/// `exp` of the mean negative log-probability of the tokens of a checked text.
///
/// # Errors
/// The model does not load, the engine fails, or `stopped` was set.
pub(super) fn perplexity(
    config: &ModelConfig,
    text: &str,
    stopped: &Arc<AtomicBool>,
) -> Result<Perplexity, CommandError> {
    Model::open_unless(config, stopped)?.with(|model| {
        let ids = model.encode(text)?;
        let size = CHUNK.min(model.engine.info().context_length - 1);
        let (mut sum, mut tokens) = (0.0, 0);
        for chunk in ids.chunks(size) {
            if stopped.load(Ordering::Relaxed) {
                return Err(QuantizeError::Interrupted.into());
            }
            for logprob in logprobs(&model.engine, chunk)? {
                (sum, tokens) = (sum + f64::from(logprob), tokens + 1);
            }
        }
        Ok(Perplexity { value: (-sum / tokens as f64).exp(), tokens })
    })
}

/// Log-probabilities of all tokens except the first.
fn logprobs(engine: &Engine, ids: &[u32]) -> Result<Vec<f32>, RequestError> {
    let (sender, events) = mpsc::channel();
    let request = Request { prompt_logprobs: true, ..Request::new(ids.to_vec(), 1) };
    let _handle = engine.submit(request, move |event| drop(sender.send(event)))?;
    for event in events {
        match event {
            Event::Prompt(tokens) => {
                return Ok(tokens.into_iter().flatten().map(|token| token.logprob).collect());
            }
            Event::Failed(error) => return Err(error),
            _ => {}
        }
    }
    Err(RequestError::EngineStopped)
}
