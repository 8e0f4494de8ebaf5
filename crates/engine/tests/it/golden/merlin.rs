//! The built-in model in bfloat16, as it was before it was quantised: its perplexity of a text, by
//! transformers in float32 and by the engine; and the cost of the default precision for each format
//! of its copies.

use std::{collections::HashMap, fs, ops::ControlFlow, path::Path, sync::mpsc};

use half::bf16;
use lanner_engine::{
    Checkpoint, Dtype, Engine, Event, Options, Precision, Request,
    quantize::{Mode, Plan, SHARD_BYTES, quantization},
};
use safetensors::{Dtype as Format, SafeTensors, tensor::TensorView};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::recorded::options;

/// Largest relative change of a text's perplexity by rounding.
const COST: f64 = 0.001;

#[derive(Deserialize)]
struct Recorded {
    chunks: Vec<Chunk>,
}

#[derive(Deserialize)]
struct Chunk {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
}

impl Recorded {
    fn read() -> Recorded {
        serde_json::from_str(include_str!("../../merlin/bf16.json")).expect("a recording")
    }
}

#[test]
fn merlin_in_bfloat16_has_the_perplexity_of_transformers() {
    let (recorded, folder) = (Recorded::read(), unquantized());
    let expected: Vec<f32> = recorded.chunks.iter().flat_map(|chunk| chunk.logprobs.clone()).collect();
    let exact = logprobs(folder.path(), in_float32(), &recorded.chunks);
    let worst = exact.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "a log-probability in float32 is off by {worst}");
    let rounded = logprobs(folder.path(), Options::default(), &recorded.chunks);
    let (got, reference) = (perplexity(&rounded), perplexity(&expected));
    println!("in float32 within {worst:.1e}; perplexity {reference:.4}, rounded {got:.4}");
    assert!((got / reference - 1.0).abs() < COST, "perplexity {got}, by transformers {reference}");
}

#[test]
fn default_precision_changes_perplexity_by_less_than_a_thousandth() {
    let (recorded, source) = (Recorded::read(), unquantized());
    let affine = [2, 3, 4, 5, 6, 8].map(|bits| quantization(Mode::Affine, Some(bits), None));
    let floats = [Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4].map(|mode| quantization(mode, None, None));
    for format in affine.into_iter().chain(floats) {
        let format = format.expect("a format");
        let out = tempfile::tempdir().expect("a folder");
        let copy = out.path().join("copy");
        let mut plan = Plan::new(&Checkpoint::Folder(source.path().into()), format).expect("planned");
        plan.write(&copy, SHARD_BYTES, &mut |_| ControlFlow::Continue(())).expect("written");
        let of = |options| perplexity(&logprobs(&copy, options, &recorded.chunks[..1]));
        let (exact, rounded) = (of(in_float32()), of(Options::default()));
        println!("{format:?}: perplexity {exact:.4} in float32, {rounded:.4} by default");
        assert!((rounded / exact - 1.0).abs() < COST, "{format:?}: {rounded} for {exact}");
    }
}

#[test]
fn keys_and_values_in_bfloat16_change_perplexity_by_less_than_a_thousandth() {
    let merlin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
    let recorded = Recorded::read();
    let of = |kv_cache_dtype| {
        let options = Options { kv_cache_dtype, ..Options::default() };
        perplexity(&logprobs(&merlin, options, &recorded.chunks))
    };
    let (own, half) = (of(None), of(Some(Dtype::Bfloat16)));
    println!("perplexity {own:.4}, with keys and values in bfloat16 {half:.4}");
    assert!(own != half && (half / own - 1.0).abs() < COST, "{half} for {own}");
}

fn in_float32() -> Options {
    Options { precision: Precision::Float32, ..Options::default() }
}

fn perplexity(logprobs: &[f32]) -> f64 {
    (-logprobs.iter().map(|&value| f64::from(value)).sum::<f64>() / logprobs.len() as f64).exp()
}

/// For all tokens of the chunks except the first of each.
fn logprobs(folder: &Path, with: Options, chunks: &[Chunk]) -> Vec<f32> {
    let engine =
        lanner_engine::start(Checkpoint::Folder(folder.into()), options(with), |_| {}).expect("loads");
    chunks.iter().flat_map(|chunk| prompt_logprobs(&engine, &chunk.ids)).collect()
}

fn prompt_logprobs(engine: &Engine, ids: &[u32]) -> Vec<f32> {
    let (sender, events) = mpsc::channel();
    let request = Request { prompt_logprobs: true, ..Request::new(ids.to_vec(), 1) };
    let _handle = engine.submit(request, move |event| drop(sender.send(event))).expect("valid");
    for event in events {
        match event {
            Event::Prompt(tokens) => {
                return tokens.into_iter().flatten().map(|token| token.logprob).collect();
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("no log-probabilities");
}

/// A copy of models/merlin with bfloat16 matrices.
fn unquantized() -> TempDir {
    let merlin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
    let folder = tempfile::tempdir().expect("a folder");
    let config = fs::read_to_string(merlin.join("config.json")).expect("config.json");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    let quantized = config["quantization"].take();
    let keys = config.as_object_mut().expect("an object");
    keys.retain(|key, _| !key.starts_with("quantization"));
    fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let bytes = fs::read(merlin.join("model.safetensors")).expect("weights");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensors = unpacked(&tensors, &quantized);
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).expect("written");
    folder
}

type Tensors = HashMap<String, (Format, Vec<usize>, Vec<u8>)>;

fn unpacked(tensors: &SafeTensors, quantized: &Value) -> Tensors {
    let mut out = Tensors::new();
    for (name, view) in tensors.tensors() {
        if name.ends_with(".scales") || name.ends_with(".biases") {
            continue;
        }
        let path = name.trim_end_matches(".weight");
        let tensor = match tensors.tensor(&format!("{path}.scales")) {
            Err(_) => (view.dtype(), view.shape().to_vec(), view.data().to_vec()),
            Ok(scales) => {
                let own = quantized.get(path).unwrap_or(quantized);
                let bits = own["bits"].as_u64().expect("bits") as usize;
                let biases = tensors.tensor(&format!("{path}.biases")).expect("biases");
                let shape = vec![view.shape()[0], view.shape()[1] * 32 / bits];
                (Format::BF16, shape, dequantized(view.data(), scales.data(), biases.data(), bits))
            }
        };
        out.insert(name, tensor);
    }
    out
}

/// `code * scale + bias` of each code, which fills 4 or 8 bits.
fn dequantized(codes: &[u8], scales: &[u8], biases: &[u8], bits: usize) -> Vec<u8> {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
    };
    let (scales, biases) = (numbers(scales), numbers(biases));
    let group = codes.len() * 8 / bits / scales.len();
    let mut out = Vec::with_capacity(codes.len() * 16 / bits);
    for (i, &byte) in codes.iter().enumerate() {
        for shift in (0..8).step_by(bits) {
            let g = (i * 8 + shift) / bits / group;
            let code = (usize::from(byte) >> shift) & ((1 << bits) - 1);
            out.extend(bf16::from_f32(code as f32 * scales[g] + biases[g]).to_le_bytes());
        }
    }
    out
}
