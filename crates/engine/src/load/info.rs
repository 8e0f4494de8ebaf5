//! Properties of a loaded model, from its config.json, generation_config.json and options.

use serde_json::Value;

use super::{Draft, Loaded};
use crate::{
    api::{
        Memory, ModelInfo, Options,
        error::{LoadError, Result},
        megabytes,
    },
    generation_config::GenerationConfig,
    models::{self, Model},
    weights::Weights,
};

pub(super) fn model_info(
    model: &dyn Model,
    config: &Value,
    generation: &GenerationConfig,
    options: &Options,
    weights: &Weights,
    draft: Option<&Draft>,
) -> Result<ModelInfo> {
    let trained = trained_context(model, config);
    let context_length = options.max_context.map_or(trained, |limit| limit.min(trained));
    if context_length < 2 {
        return Err(LoadError::Options(format!("a context of {context_length} tokens holds no answer")));
    }
    let eos_ids = eos_ids(config, generation, options, model.vocab_size())?;
    Ok(ModelInfo {
        model_type: config.get("model_type").and_then(Value::as_str).unwrap_or_default().into(),
        vocab_size: model.vocab_size(),
        memory: memory(model, config, options, weights.loaded_bytes(), draft)?,
        context_length,
        is_encoder: model.is_bidirectional(),
        vision: models::vision_support(config, model.tower()),
        eos_ids,
        drafters: vec![],
        speculate: options.speculate.clone(),
        default_sampling: generation.sampling.clone(),
        weight_bytes: weights.loaded_bytes(),
        weights: weights.summary(config),
    })
}

/// The longest context that the model was made for; `config` is the text part of config.json.
pub(crate) fn trained_context(model: &dyn Model, config: &Value) -> usize {
    model.context_length().max(stretched_context(config).unwrap_or(0))
}

/// # Errors
/// The limit leaves no room for a sequence.
fn memory(
    model: &dyn Model,
    config: &Value,
    options: &Options,
    weights: usize,
    draft: Option<&Draft>,
) -> Result<Memory> {
    let mut memory = Memory::of(model, config, options, weights)?;
    match draft {
        Some(Draft::Model(Loaded { model, config, weights })) => {
            memory.add_draft(Memory::of(&**model, config, options, weights.loaded_bytes())?);
        }
        Some(Draft::Block(block, weights)) => memory.add_block(block, *weights, options),
        None => {}
    }
    // A failure only costs speed.
    mlx::wire_memory(memory.limit.unwrap_or(usize::MAX))
        .unwrap_or_else(|error| tracing::warn!("memory is not wired: {error}"));
    let Some(limit) = memory.limit else { return Ok(memory) };
    // A prompt of one token, and its answer.
    let least = memory.weights + memory.step + memory.state(2);
    if least > limit {
        return Err(LoadError::Options(format!(
            "the weights take {}, a step {} and the shortest sequence {} of memory, and the limit is {}; set it to {least} bytes \
             or more, or lower --prefill-chunk",
            megabytes(memory.weights),
            megabytes(memory.step),
            megabytes(memory.state(2)),
            megabytes(limit)
        )));
    }
    mlx::set_memory_limit(limit)?;
    Ok(memory)
}

/// Files that add YaRN to a shorter model leave `max_position_embeddings` as it was and mean the
/// stretched length.
fn stretched_context(config: &Value) -> Option<usize> {
    let rope = config.get("rope_parameters").or(config.get("rope_scaling"))?;
    let yarn = ["rope_type", "type"].iter().any(|key| rope.get(key) == Some(&Value::from("yarn")));
    let number = |key: &str| rope.get(key).and_then(Value::as_f64).filter(|_| yarn);
    Some((number("original_max_position_embeddings")? * number("factor")?) as usize)
}

/// End-of-sequence ids of generation_config.json and config.json, or of the tokenizer.
///
/// # Errors
/// generation_config.json names a token that the model does not have.
fn eos_ids(
    config: &Value,
    generation: &GenerationConfig,
    options: &Options,
    vocab_size: usize,
) -> Result<Vec<u32>> {
    let is_known = |id: &u32| (*id as usize) < vocab_size;
    if let Some(id) = generation.eos_ids.iter().find(|id| !is_known(id)) {
        return Err(LoadError::File {
            path: "generation_config.json".into(),
            message: format!("eos_token_id is {id}, and the model has {vocab_size} tokens"),
        });
    }
    let mut ids = [generation.eos_ids.clone(), token_ids(config.get("eos_token_id"))].concat();
    if ids.is_empty() {
        ids.extend(options.eos_ids.iter().filter(|id| is_known(id)));
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// One token id or a list of them.
fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => vec![],
    }
}
