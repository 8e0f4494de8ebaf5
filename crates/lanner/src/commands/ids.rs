//! `lanner run --ids`: token ids in, token ids out, for parity checks. Needs no tokenizer.

use std::{io::Write, path::Path, sync::mpsc};

use engine::{Engine, Event, Request};

use super::CommandError;
use crate::config::RunConfig;

/// Prints the ids that follow `prompt`, separated by spaces.
///
/// # Errors
/// The engine refuses or fails the request, or a file cannot be written.
pub(super) fn continue_ids(
    engine: &Engine,
    prompt: Vec<u32>,
    config: &RunConfig,
) -> Result<(), CommandError> {
    let request = Request {
        ignore_eos: config.ignore_eos,
        logits: config.dump_logits.is_some(),
        ..config.sampling.request(prompt.clone(), engine.info())
    };
    let (sender, events) = mpsc::channel();
    // A closed channel means that this function has returned.
    let _handle = engine.submit(request, move |event| drop(sender.send(event)))?;
    let (mut ids, mut logits) = (vec![], vec![]);
    for event in events {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Logits { values, .. } => logits.push(values),
            Event::Failed(error) => return Err(error.into()),
            Event::Prompt(_)
            | Event::Embedding(_)
            | Event::PromptProgress { .. }
            | Event::Finished { .. } => {}
        }
    }
    writeln!(std::io::stdout(), "{}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))?;
    match &config.dump_logits {
        Some(path) => dump_logits(path, &logits, &[prompt, ids].concat(), engine.info().vocab_size),
        None => Ok(()),
    }
}

/// Writes tensors `logits` `[positions, vocab_size]`, float32, and `ids` `[prompt + new]`, uint32.
///
/// # Errors
/// The file cannot be written.
pub(super) fn dump_logits(
    path: &Path,
    logits: &[Vec<f32>],
    ids: &[u32],
    vocab_size: usize,
) -> Result<(), CommandError> {
    use safetensors::{Dtype, tensor::TensorView};
    let cannot = |error: std::io::Error| CommandError::Write { path: path.to_path_buf(), error };
    let logit_bytes: Vec<u8> = logits.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let id_bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let view = |dtype, shape, data| TensorView::new(dtype, shape, data).map_err(std::io::Error::other);
    let tensors = [
        ("logits", view(Dtype::F32, vec![logits.len(), vocab_size], &logit_bytes).map_err(cannot)?),
        ("ids", view(Dtype::U32, vec![ids.len()], &id_bytes).map_err(cannot)?),
    ];
    let file = safetensors::serialize(tensors, None).map_err(std::io::Error::other).map_err(cannot)?;
    std::fs::write(path, file).map_err(cannot)
}
