//! Embeddings of prompts: equal to the reference's, whatever the batch, the chunks and the cache.

use std::{path::Path, sync::mpsc};

use lanner_engine::{
    CacheReport, Checkpoint, Engine, Event, FinishReason, Miss, MissReason, Options, Pooling, Precision,
    Request, RequestError, Usage, start,
};
use serde_json::Value;

use crate::support::{
    checkpoint,
    recorded::{self, largest_difference, options},
};

/// Dense, of two families; recurrent; convolutional.
const FAMILIES: [&str; 4] = ["qwen3-a", "gemma3_text-a", "qwen3_5-a", "lfm2-a"];

fn load(name: &str, with: Options) -> Engine {
    let folder = checkpoint::folder(name);
    let with = Options { precision: Precision::Float32, ..with };
    start(Checkpoint::Folder(folder.path().into()), options(with), |_| {}).expect("loads")
}

/// Submits a request; the result waits for its embedding.
fn embed(engine: &Engine, prompt: &[u32], pooling: Pooling) -> impl FnOnce() -> (Vec<f32>, Usage) + use<> {
    let (sender, events) = mpsc::channel();
    let request = Request::embedding(prompt.to_vec(), pooling);
    let handle = engine.submit(request, move |event| drop(sender.send(event))).expect("valid");
    move || {
        let events: Vec<Event> = events.into_iter().collect();
        drop(handle);
        match &events[..] {
            [Event::Embedding(values), Event::Finished { reason: FinishReason::Length, usage }] => {
                (values.clone(), usage.clone())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The tied output head `[vocab_size, hidden_size]` of a recorded checkpoint.
fn head(folder: &Path) -> Vec<f32> {
    let text = std::fs::read_to_string(folder.join("golden.json")).expect("golden.json");
    let golden: Value = serde_json::from_str(&text).expect("a golden");
    let tensors = golden["tensors"].as_object().expect("tensors");
    let (name, spec) = tensors.iter().find(|(name, _)| name.ends_with("embed_tokens.weight")).expect("one");
    let bytes = checkpoint::values(name, golden["seed"].as_u64().expect("seed"), spec);
    bytes.chunks(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
}

fn times(head: &[f32], hidden: &[f32]) -> Vec<f32> {
    let product = |row: &[f32]| row.iter().zip(hidden).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    head.chunks(hidden.len()).map(|row| -> f64 { product(row) }).map(|value| value as f32).collect()
}

/// The logits that transformers recorded are those of the last hidden state.
#[test]
fn embedding_times_the_output_head_is_the_recorded_logits() {
    for name in FAMILIES {
        let folder = checkpoint::recorded().join(name);
        let (engine, head) = (load(name, Options::default()), head(&folder));
        for case in &recorded::golden(&folder).cases {
            for (position, expected) in case.expected(0).filter(|(at, _)| *at < case.prompt_ids.len()) {
                let (hidden, _) = embed(&engine, &case.prompt_ids[..=position], Pooling::Last)();
                let worst = largest_difference(&times(&head, &hidden), expected);
                assert!(worst < 1e-3, "{name}: off by {worst} at {position}");
            }
        }
    }
}

/// EmbeddingGemma's kind: every token sees those after it, in windows too.
#[test]
fn embedding_of_an_encoder_is_the_recorded_mean_in_every_batch() {
    let folder = checkpoint::folder("../encoders/gemma3_text");
    let text = std::fs::read_to_string(checkpoint::recorded().join("../encoders/gemma3_text/golden.json"));
    let golden: Value = serde_json::from_str(&text.expect("golden.json")).expect("a golden");
    let numbers = |value: &Value| -> Vec<f32> { serde_json::from_value(value.clone()).expect("numbers") };
    let cases = golden["cases"].as_array().expect("cases");
    let cases: Vec<(Vec<u32>, Vec<f32>)> = cases
        .iter()
        .map(|case| {
            (serde_json::from_value(case["prompt_ids"].clone()).expect("ids"), numbers(&case["mean"]))
        })
        .collect();
    let mut alone: Vec<Vec<f32>> = vec![];
    // Prompts are longer than a chunk, and together longer than the context.
    for (prefill_chunk, max_batch) in [(512, 1), (7, 4), (512, 4)] {
        let with = Options { precision: Precision::Float32, prefill_chunk, max_batch, ..Options::default() };
        let engine = start(Checkpoint::Folder(folder.path().into()), options(with), |_| {}).expect("loads");
        assert!(engine.info().is_encoder);
        for _ in 0..2 {
            let waiting = cases.iter().chain(&cases).chain(&cases).chain(&cases);
            let waiting: Vec<_> = waiting.map(|(prompt, _)| embed(&engine, prompt, Pooling::Mean)).collect();
            let found: Vec<(Vec<f32>, Usage)> = waiting.into_iter().map(|finish| finish()).collect();
            for ((values, usage), (prompt, expected)) in found.iter().zip(cases.iter().cycle()) {
                let worst = largest_difference(values, expected);
                assert!(worst < 1e-3, "off by {worst} with {} tokens", prompt.len());
                assert_eq!(usage.cached_tokens, 0);
            }
            let found: Vec<Vec<f32>> = found.into_iter().map(|(values, _)| values).collect();
            alone = if alone.is_empty() { found.clone() } else { alone };
            assert_eq!(found, alone);
        }
        for request in [Request::new(vec![5], 1), Request::embedding(vec![5], Pooling::Last)] {
            assert_eq!(engine.submit(request, |_| {}).err(), Some(RequestError::EncoderOnly));
        }
    }
}

fn prompt(length: u32, seed: u32) -> Vec<u32> {
    (0..length).map(|i| 2 + (i * 37 + seed * 11) % 240).collect()
}

#[test]
fn mean_pooling_is_the_mean_of_the_states_after_every_token() {
    for name in FAMILIES {
        let engine = load(name, Options { prefix_cache_bytes: 0, ..Options::default() });
        let prompt = prompt(23, 1);
        let states = (1..=prompt.len()).map(|end| embed(&engine, &prompt[..end], Pooling::Last)().0);
        let states: Vec<Vec<f32>> = states.collect();
        let (mean, _) = embed(&engine, &prompt, Pooling::Mean)();
        for (i, got) in mean.iter().enumerate() {
            let sum: f64 = states.iter().map(|state| f64::from(state[i])).sum();
            assert_eq!(*got, (sum / prompt.len() as f64) as f32, "{name}: number {i}");
        }
    }
}

#[test]
fn embedding_is_the_same_in_every_batch_chunk_and_cache() {
    for name in FAMILIES {
        for pooling in [Pooling::Last, Pooling::Mean] {
            let prompts: Vec<Vec<u32>> = [1, 30, 31, 77].map(|length| prompt(length, length % 2)).into();
            let with = |prefill_chunk, max_batch, prefix_cache_bytes| {
                load(name, Options { prefill_chunk, max_batch, prefix_cache_bytes, ..Options::default() })
            };
            let alone = with(512, 1, 0);
            let alone: Vec<_> = prompts.iter().map(|prompt| embed(&alone, prompt, pooling)().0).collect();
            let together = with(7, 4, 1 << 24);
            for _ in 0..2 {
                let waiting: Vec<_> =
                    prompts.iter().map(|prompt| embed(&together, prompt, pooling)).collect();
                let found: Vec<_> = waiting.into_iter().map(|finish| finish().0).collect();
                assert_eq!(found, alone, "{name} {pooling:?}");
            }
        }
    }
}

#[test]
fn last_pooling_reuses_the_prefix_and_mean_computes_all() {
    let engine = load("qwen3_5-a", Options::default());
    let prompt = prompt(120, 3);
    embed(&engine, &prompt, Pooling::Last)();
    let cache = |pooling| embed(&engine, &prompt, pooling)().1.cache;
    let CacheReport { reused, miss, .. } = cache(Pooling::Last);
    assert_eq!((reused, miss), (119, None));
    let CacheReport { reused, miss, .. } = cache(Pooling::Mean);
    assert_eq!((reused, miss), (0, Some(Miss { reason: MissReason::LogitsWanted, position: 0 })));
}

#[test]
fn embedding_between_generations_changes_neither() {
    let engine = load("qwen3-a", Options { prefill_chunk: 8, ..Options::default() });
    let generation = || {
        let request = Request { ignore_eos: true, ..Request::new(prompt(40, 5), 12) };
        recorded::ask(&engine, request)
    };
    let alone = generation()().tokens;
    let (embedding, _) = embed(&engine, &prompt(60, 6), Pooling::Mean)();
    let (running, among) = (generation(), embed(&engine, &prompt(60, 6), Pooling::Mean));
    assert_eq!(among().0, embedding);
    assert_eq!(running().tokens, alone);
}

#[test]
fn embedding_of_a_bad_prompt_is_refused() {
    let engine = load("qwen3-a", Options { max_context: Some(16), ..Options::default() });
    let submit = |prompt: Vec<u32>| engine.submit(Request::embedding(prompt, Pooling::Last), |_| {}).err();
    assert_eq!(submit(vec![]), Some(RequestError::EmptyPrompt));
    assert!(matches!(submit(vec![5; 16]), Some(RequestError::PromptTooLong { .. })));
    assert!(matches!(submit(vec![1 << 20]), Some(RequestError::TokenOutOfRange { .. })));
}

/// Qwen3-Embedding is published like this.
#[test]
fn checkpoint_without_the_prefix_of_its_names_loads() {
    let folder = checkpoint::folder("qwen3-a");
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).expect("weights");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    let bare = tensors.tensors().into_iter().map(|(name, tensor)| {
        let bare = name.strip_prefix("model.").unwrap_or_else(|| panic!("{name}")).to_owned();
        (bare, tensor)
    });
    let renamed = safetensors::serialize(bare, None).expect("serialized");
    std::fs::write(&path, renamed).expect("written");
    let bare = start(Checkpoint::Folder(folder.path().into()), options(Options::default()), |_| {});
    let bare = bare.expect("loads");
    let usual = start(
        Checkpoint::Folder(checkpoint::folder("qwen3-a").path().into()),
        options(Options::default()),
        |_| {},
    );
    let embedding = |engine: &Engine| embed(engine, &prompt(9, 1), Pooling::Last)().0;
    assert_eq!(embedding(&bare), embedding(&usual.expect("loads")));
}
