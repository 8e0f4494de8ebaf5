//! Quantised towers, as mlx-vlm's converter writes them where it is told to.

use mlx::quant::{Mode, Quantization, quantize};
use safetensors::tensor::{Dtype as Stored, TensorView};
use tempfile::TempDir;

use super::*;

/// Layers of towers, of models without an encoder, and of projectors.
const PARTS: [&str; 5] =
    [".visual.", "vision_tower.", "vision_embedder.", "embed_vision.", "multi_modal_projector."];
/// Never quantised: mlx-vlm's converter quantises no convolution and no bare parameter.
const WHOLE: [&str; 3] = ["patch_conv.weight", "position_embedding_table", "pos_embedding"];

/// Two copies of a checkpoint: with its tower quantised, and with the values that this leaves.
struct Copies {
    quantized: TempDir,
    dequantized: TempDir,
    /// Number of quantised matrices.
    count: usize,
}

type Tensor = (String, Stored, Vec<usize>, Vec<u8>);

fn copies(source: &Path, bits: i32) -> Copies {
    let format = Quantization { mode: Mode::Affine, group_size: 32, bits };
    let mut file = mlx::load::Safetensors::open(&source.join("model.safetensors")).expect("opens");
    let (mut quantized, mut dequantized, mut count) = (vec![], vec![], 0);
    for name in file.names() {
        let values = file.read(&name).expect("reads");
        let path = name.strip_suffix(".weight").filter(|_| is_quantized(&name, values.shape()));
        let Some(path) = path else {
            quantized.push(tensor(&name, &values));
            dequantized.push(tensor(&name, &values));
            continue;
        };
        let packed = quantize(&values, format);
        let parts = packed.parts().zip(["weight", "scales", "biases"]);
        quantized.extend(parts.map(|(part, end)| tensor(&format!("{path}.{end}"), part)));
        dequantized.push(tensor(&name, &packed.dequantize(Dtype::Float32)));
        count += 1;
    }
    Copies { quantized: write(source, quantized), dequantized: write(source, dequantized), count }
}

/// Whether a tensor is a matrix of a tower whose rows are whole groups.
fn is_quantized(name: &str, shape: &[i32]) -> bool {
    let of_tower = PARTS.iter().any(|part| name.contains(part));
    of_tower && shape.len() == 2 && shape[1] % 32 == 0 && !WHOLE.iter().any(|whole| name.ends_with(whole))
}

fn tensor(name: &str, values: &Array) -> Tensor {
    let shape = values.shape().iter().map(|&length| length as usize).collect();
    let (dtype, bytes) = match values.dtype() {
        Dtype::Uint32 => {
            let words: Vec<u32> = values.to_vec().expect("words");
            (Stored::U32, words.iter().flat_map(|word| word.to_le_bytes()).collect())
        }
        // Wider than the source, so that nothing is rounded twice.
        _ => {
            let numbers = values.to_f32().expect("numbers");
            (Stored::F32, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
        }
    };
    (name.into(), dtype, shape, bytes)
}

fn write(source: &Path, tensors: Vec<Tensor>) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).expect("copied");
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).expect("written");
    folder
}

/// Features of all images of a golden.
fn features(folder: &Path, types: Types, golden: &Value) -> Vec<f32> {
    let model = load(folder, types);
    let tower = model.tower().expect("a tower");
    let images = golden["images"].as_array().expect("images").iter().enumerate();
    let features = images.flat_map(|(index, recorded)| {
        let tokens = recorded["features"].as_array().expect("features").len();
        let image = fitting(golden, index, tokens, tower);
        tower.forward(&image).to_f32().expect("evaluates")
    });
    features.collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

/// With 8 bits near the features of the whole tower, and equal to those of the values that
/// quantisation leaves; in the type of the checkpoint too.
#[test]
fn quantized_towers_compute_what_their_values_say() {
    nn::set_precision(Precision::Float32);
    for name in names() {
        let (source, golden) = (checkpoint::folder(&format!("../towers/{name}")), golden(&name));
        let whole = features(source.path(), FLOAT32, &golden);
        for (bits, least) in [(8, 0.999), (4, 0.9)] {
            let Copies { quantized, dequantized, count } = copies(source.path(), bits);
            assert!(count > 0 || name.ends_with("-odd"), "{name}: nothing is quantised");
            let found = features(quantized.path(), FLOAT32, &golden);
            let expected = features(dequantized.path(), FLOAT32, &golden);
            let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off <= BOUND, "{name}: off by {off} with {bits} bits");
            let near = cosine(&found, &whole);
            println!("{name}: {count} matrices of {bits} bits, off by {off:.0e}, cosine {near:.5}");
            assert!(near >= least, "{name}: cosine {near} with {bits} bits");
            let as_stored = features(quantized.path(), Types::default(), &golden);
            let near = cosine(&as_stored, &expected);
            assert!(near >= 0.999, "{name}: cosine {near} with {bits} bits as stored");
        }
    }
}
