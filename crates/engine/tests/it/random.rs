//! Random weights: every family loads and runs with them, in every format.

use std::{collections::BTreeSet, fs, path::Path, sync::mpsc};

use lanner_engine::{
    Checkpoint, Device, Engine, Event, ModelInfo, Options, Request,
    quantize::{Mode, Quantization},
    start,
};
use serde_json::Value;

const AFFINE: Quantization = Quantization { mode: Mode::Affine, group_size: 32, bits: 4 };

fn configs() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.expect("an entry");
        let text = fs::read_to_string(entry.path().join("config.json")).expect("config.json");
        (entry.file_name().into_string().expect("a name"), serde_json::from_str(&text).expect("JSON"))
    };
    fs::read_dir(folder).expect("goldens").map(read).collect()
}

fn open(config: &Value, quantization: Option<Quantization>) -> Engine {
    let checkpoint = Checkpoint::Random { config: config.clone(), quantization };
    let options = Options { device: Some(Device::Cpu), ..Options::default() };
    start(checkpoint, options, |_| {}).unwrap_or_else(|e| panic!("{config}: {e}"))
}

/// Logits after a short prompt and two more tokens.
fn logits(engine: &Engine) -> Vec<f32> {
    let (sender, events) = mpsc::channel();
    let request = Request { logits: true, ignore_eos: true, ..Request::new(vec![5, 9, 2, 33], 3) };
    let _handle = engine.submit(request, move |event| drop(sender.send(event))).expect("valid");
    let mut all = vec![];
    for event in events {
        match event {
            Event::Logits { values, .. } => all.extend(values),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    all
}

/// Loads and runs; logits must have realistic sizes.
fn check(name: &str, config: &Value, quantization: Option<Quantization>) -> ModelInfo {
    let engine = open(config, quantization);
    let logits = logits(&engine);
    assert_eq!(logits.len(), 6 * engine.info().vocab_size, "{name}");
    let mean_square = logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32;
    assert!((1e-3..30.0).contains(&mean_square.sqrt()), "{name}, {quantization:?}: {}", mean_square.sqrt());
    let distinct: BTreeSet<u32> = logits.iter().map(|x| x.to_bits()).collect();
    assert!(distinct.len() > logits.len() / 2, "{name}: {} distinct logits", distinct.len());
    engine.info().clone()
}

#[test]
fn random_weights_run_in_every_family() {
    let configs = configs();
    assert!(configs.len() >= 80, "{} configurations", configs.len());
    for (name, config) in configs {
        let dense = check(&name, &config, None);
        assert_eq!(dense.weights.format, "bfloat16", "{name}");
        assert_eq!(dense.weight_bytes, 2 * dense.weights.parameters, "{name}");
        let quantized = check(&name, &config, Some(AFFINE));
        assert_eq!(quantized.weights.parameters, dense.weights.parameters, "{name}");
        // Odd sizes are not multiples of the group size.
        let smaller = quantized.weight_bytes < dense.weight_bytes;
        assert!(smaller || name.ends_with("-odd"), "{name}");
    }
}

#[test]
fn random_weights_give_moderate_logits_in_every_format() {
    let (_, config) = configs().into_iter().find(|(name, _)| name == "qwen3-a").expect("recorded");
    let affine = |bits, group_size| Quantization { bits, group_size, ..AFFINE };
    let bits = [2, 3, 4, 5, 6, 8].map(|bits| affine(bits, 32));
    let fixed = Mode::ALL.into_iter().filter_map(Mode::fixed);
    let mut sizes = vec![];
    for quantization in bits.into_iter().chain(fixed) {
        sizes.push(check("qwen3-a", &config, Some(quantization)).weight_bytes);
    }
    assert!(sizes[..6].is_sorted(), "more bits take more memory: {sizes:?}");
}

#[test]
fn random_weights_are_the_same_every_time() {
    let (_, config) = configs().into_iter().find(|(name, _)| name == "qwen3_5-a").expect("recorded");
    let bits = |engine: &Engine| logits(engine).into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(&open(&config, Some(AFFINE))), bits(&open(&config, Some(AFFINE))));
}
