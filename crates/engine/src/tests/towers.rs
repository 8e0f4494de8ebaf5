//! Outputs of recorded vision towers, and positions of prompts with images, against transformers.

mod quantized;

use std::path::Path;

use serde_json::Value;

use super::*;
use crate::{load::with_top_level_keys, models::ImagePositions};

const BOUND: f32 = 3e-4;

fn number(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

const FLOAT32: Types = Types { activations: Some(Dtype::Float32), weights: None };

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(checkpoint::recorded().join("../towers")).expect("goldens");
    let names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 14, "the goldens are there");
    names
}

fn golden(name: &str) -> Value {
    let file = checkpoint::recorded().join("../towers").join(name).join("golden.json");
    serde_json::from_str(&std::fs::read_to_string(file).expect("golden.json")).expect("JSON")
}

/// The model of a recorded checkpoint and the golden.
fn read(name: &str) -> (Box<dyn Model>, Value) {
    let folder = checkpoint::folder(&format!("../towers/{name}"));
    (load(folder.path(), FLOAT32), golden(name))
}

fn load(folder: &Path, types: Types) -> Box<dyn Model> {
    let checkpoint = Checkpoint::Folder(folder.into());
    let config = checkpoint.config().expect("config");
    let family = models::family(&config).expect("a family");
    let declared = QuantizationConfig::from_config(&config).expect("declared");
    let files = checkpoint.weight_files().expect("files");
    let text = with_top_level_keys(models::text_config(&config), &config);
    let layout = family.layout(&text);
    let weights = Weights::new(files, &layout, types, declared, Box::new(|_, _| {})).expect("weights");
    let model = (family.load)(&text, &weights).expect("loads");
    weights.all_used().expect("all of it is needed");
    model
}

/// Image `index` of a golden, with `values` numbers for each row and column of its tensors.
fn image(golden: &Value, index: usize, tokens: usize, values: usize) -> Image {
    let recorded = &golden["images"][index];
    let views: Vec<[usize; 2]> = match &recorded["views"] {
        Value::Null => vec![[number(&recorded["rows"]), number(&recorded["columns"])]],
        views => serde_json::from_value(views.clone()).expect("views"),
    };
    let sizes: Vec<usize> = views.iter().map(|[rows, columns]| rows * columns * values).collect();
    let count: usize = sizes.iter().sum();
    let spec = serde_json::json!({"dtype": "F32", "shape": [count], "mean": 0.0, "spread": 1.0});
    let seed = golden["seed"].as_u64().expect("a seed");
    let bytes = checkpoint::values(&format!("pixels.{index}"), seed, &spec);
    let mut values = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four));
    let tensors = views.iter().zip(sizes).map(|(&[rows, columns], size)| {
        let values = values.by_ref().take(size).collect();
        ImageTensor { rows, columns, values }
    });
    let run = 0..tokens;
    Image { positions: vec![run], digest: [index as u8; 32], tensors: tensors.collect() }
}

/// The number of values that the tower accepts for an image: of planes, or of patches.
fn fitting(golden: &Value, index: usize, tokens: usize, tower: &dyn models::Tower) -> Image {
    let candidates = (1..=300).map(|values| image(golden, index, tokens, values));
    candidates.into_iter().find(|image| tower.check(image).is_ok()).expect("a size that fits")
}

fn check(name: &str) {
    nn::set_precision(Precision::Float32);
    let (model, golden) = read(name);
    let tower = model.tower().expect("a tower");
    for (index, recorded) in golden["images"].as_array().expect("images").iter().enumerate() {
        let expected: Vec<Vec<f32>> = serde_json::from_value(recorded["features"].clone()).expect("features");
        let image = fitting(&golden, index, expected.len(), tower);
        let features = tower.forward(&image).to_f32().expect("evaluates");
        let width = features.len() / expected.len();
        for (token, expected) in expected.iter().enumerate() {
            let found = &features[token * width..][..expected.len()];
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off <= BOUND, "{name}: feature {token} of image {index} is off by {off}");
        }
        let again = tower.forward(&image).to_f32().expect("evaluates");
        assert_eq!(again, features, "{name}: the same bits each time");
    }
}

#[test]
fn towers_compute_the_features_of_the_reference() {
    names().iter().for_each(|name| check(name));
}

#[test]
fn positions_of_prompts_with_images_are_those_of_the_reference() {
    for name in ["qwen3_5", "qwen3_5-odd", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe-odd"] {
        let (model, golden) = read(name);
        let tower = model.tower().expect("a tower");
        for case in golden["cases"].as_array().expect("cases") {
            let images: Vec<(usize, Vec<[usize; 2]>)> =
                serde_json::from_value(case["images"].clone()).expect("images");
            let placed = images.iter().map(|(index, runs)| {
                let [start, end] = runs[0];
                let image = fitting(&golden, *index, end - start, tower);
                (start..end, tower.grid(&image).expect("axes"))
            });
            let positions = ImagePositions::new(placed);
            let expected: [Vec<i32>; 3] =
                serde_json::from_value(case["positions"].clone()).expect("positions");
            for index in 0..expected[0].len() {
                let expected = [0, 1, 2].map(|axis| expected[axis][index]);
                assert_eq!(positions.at(index), expected, "{name}: token {index}");
            }
            let length = expected[0].len();
            let delta = case["delta"].as_i64().expect("a delta") as i32;
            assert_eq!(positions.at(length), [length as i32 + delta; 3], "{name}: the answer");
        }
    }
}
