//! Published tokenizers, compared with the tokenizers library and llama.cpp, and streaming.
//!
//! The files are not in this repository: set `LANNER_SHARED` to a folder with an unpacked
//! `tokenizers/`, or the tests are skipped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lanner_chat::{Detokenizer, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

use crate::skipped;

/// Folder and file of a tokenizer, and its name in llama.cpp's goldens.
const PUBLISHED: [(&str, &str, Option<&str>); 5] = [
    ("qwen3", "tokenizer.rebuilt.json", Some("qwen2")),
    ("llama3", "tokenizer.rebuilt.json", Some("llama-bpe")),
    ("gpt-oss", "tokenizer.rebuilt.json", Some("gpt-4o")),
    ("llama2", "tokenizer.json", Some("llama-spm")),
    ("mistral-7b-v0.2", "tokenizer.json", None),
];

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("LANNER_SHARED").map(|s| PathBuf::from(s).join("tokenizers"));
    let folder = folder.filter(|f| f.is_dir());
    if folder.is_none() {
        skipped::skipped("published tokenizers: LANNER_SHARED is not set or does not hold tokenizers/");
    }
    folder
}

fn load(name: &str, file: &str) -> Option<Arc<Tokenizer>> {
    let folder = folder()?.join(name);
    let config = std::fs::read(folder.join("tokenizer_config.json")).unwrap();
    let json = std::fs::read(folder.join(file)).unwrap();
    let start = Instant::now();
    let tokenizer = Tokenizer::from_bytes(&json, Some(&config)).unwrap();
    println!("{name}: {} tokens, loaded in {:?}", tokenizer.vocab_size(), start.elapsed());
    Some(Arc::new(tokenizer))
}

fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

#[test]
fn ids_and_text_equal_tokenizers_library() {
    for (name, file, _) in PUBLISHED {
        let Some(tokenizer) = load(name, file) else { return };
        let goldens = folder().unwrap().join(format!("hf-goldens/{name}.jsonl"));
        let goldens = std::fs::read_to_string(goldens).unwrap();
        for line in goldens.lines() {
            let golden: Value = serde_json::from_str(line).unwrap();
            let text = golden["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(golden["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), golden["decoded"], "{name}: {text:?}");
            assert_eq!(stream(&tokenizer, &ids), tokenizer.decode(&ids, true).unwrap(), "{name}: {text:?}");
        }
        println!("{name}: {} of {} texts match", goldens.lines().count(), goldens.lines().count());
    }
}

#[test]
fn ids_equal_llama_cpp() {
    for (name, file, golden) in PUBLISHED {
        let Some(golden) = golden else { continue };
        let Some(tokenizer) = load(name, file) else { return };
        let read = |kind: &str| {
            let path = format!("llama.cpp-goldens/ggml-vocab-{golden}.gguf.{kind}");
            std::fs::read_to_string(folder().unwrap().join(path)).unwrap()
        };
        // Some copies of these files have Windows line endings.
        let (texts, ids) = (read("inp").replace("\r\n", "\n"), read("out"));
        for (text, ids) in texts.split("\n__ggml_vocab_test__\n").zip(ids.lines()) {
            let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids, "{name}: {text:?}");
        }
        println!("{name}: {} texts match llama.cpp", ids.lines().count());
    }
}

#[test]
fn streaming_random_ids_equals_decode() {
    for (name, file, _) in PUBLISHED {
        let Some(tokenizer) = load(name, file) else { return };
        let last = tokenizer.vocab_size() as u32 + 8;
        // Half of the ids are low: single bytes in every vocabulary.
        let ids = prop::collection::vec(prop_oneof![0..300u32, 0..last], 0..80);
        proptest!(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() }, |(ids in ids)| {
            prop_assert_eq!(stream(&tokenizer, &ids), tokenizer.decode(&ids, true).unwrap());
        });
    }
}
