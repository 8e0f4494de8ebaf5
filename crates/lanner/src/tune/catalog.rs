//! The models of the catalogue as their files describe them: recorded config.json and headers, so
//! that what fits is known before a download.

use engine::{Headers, TensorHeader};
use serde_json::Value;

/// A model of the catalogue, as it was published.
pub(crate) struct RecordedModel {
    /// Its short name.
    pub name: &'static str,
    /// The repository of the unquantised model.
    pub source: String,
    pub headers: Headers,
}

macro_rules! recorded_models {
    ($($name:literal: $file:literal),* $(,)?) => {
        /// Short names, and the records of the repositories they come from.
        const RECORDS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../engine/tests/configs/", $file, ".json")))),*
        ];
    };
}
recorded_models! {
    "qwen3.5-0.8b": "Qwen3.5-0.8B",
    "qwen3.5-4b": "Qwen3.5-4B",
    "qwen3.5-9b": "Qwen3.5-9B",
    "qwen3.6-35b": "Qwen3.6-35B-A3B",
    "qwen3-0.6b": "Qwen3-0.6B",
    "qwen3-4b": "Qwen3-4B",
    "qwen3-8b": "Qwen3-8B",
    "llama-3.2-1b": "Llama-3.2-1B",
    "llama-3.2-3b": "Llama-3.2-3B",
    "gemma-3-4b": "gemma-3-4b-it",
    "gemma-4-e2b": "gemma-4-E2B-it",
    "lfm2-1.2b": "LFM2-1.2B",
    "glm-4-9b": "GLM-4-9B-0414",
    "gpt-oss-20b": "gpt-oss-20b",
}

/// All models of the catalogue, in its order.
pub(crate) fn recorded() -> Vec<RecordedModel> {
    RECORDS.iter().filter_map(|(name, text)| parse(name, text)).collect()
}

/// `None` if the record is not what it should be, which a test rules out.
fn parse(name: &'static str, text: &str) -> Option<RecordedModel> {
    let record: Value = serde_json::from_str(text).ok()?;
    let mut tensors = vec![];
    for (pattern, spec) in record["tensors"].as_object()? {
        let shape = spec[1].as_array()?.iter().map(|dim| Some(dim.as_u64()? as usize));
        let (dtype, shape) = (spec[0].as_str()?.to_owned(), shape.collect::<Option<Vec<_>>>()?);
        let header = |name| TensorHeader { name, dtype: dtype.clone(), shape: shape.clone() };
        tensors.extend(expand(pattern).into_iter().map(header));
    }
    let (source, config) = (record["source"].as_str()?.to_owned(), record["config"].clone());
    Some(RecordedModel { name, source, headers: Headers::Recorded { config, tensors } })
}

/// Expands a pattern into names: `{0-3}` is an inclusive range of integers, `{q,k,5,7-9}` a list.
fn expand(pattern: &str) -> Vec<String> {
    let braces = pattern.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (items, after))) = braces else { return vec![pattern.to_owned()] };
    let tails = expand(after);
    let choices = items.split(',').flat_map(range);
    choices.flat_map(|choice| tails.iter().map(move |tail| format!("{before}{choice}{tail}"))).collect()
}

/// `7-9` as three numbers, anything else unchanged.
fn range(item: &str) -> Vec<String> {
    let ends = item.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match ends {
        Some((first, last)) => (first..=last).map(|n: u32| n.to_string()).collect(),
        None => vec![item.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::CATALOG;

    #[test]
    fn every_model_of_the_catalogue_is_recorded() {
        let recorded = recorded();
        let names: Vec<&str> = recorded.iter().map(|model| model.name).collect();
        let own: Vec<&str> =
            CATALOG.iter().map(|entry| entry.name).filter(|name| !name.ends_with("-bf16")).collect();
        assert_eq!(names, own);
        for RecordedModel { name, headers, .. } in recorded {
            let Headers::Recorded { config, tensors } = headers else { panic!("{name}") };
            assert!(config["model_type"].is_string() && tensors.len() > 20, "{name}");
        }
    }

    #[test]
    fn pattern_with_ranges_and_lists_expands_into_names() {
        assert_eq!(expand("a.{9-11}.{q,k}"), ["a.9.q", "a.9.k", "a.10.q", "a.10.k", "a.11.q", "a.11.k"]);
        assert_eq!(expand("model.norm.weight"), ["model.norm.weight"]);
    }
}
