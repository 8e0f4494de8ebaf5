//! Outputs of recorded vision towers, and positions of prompts with images, against transformers.

use std::sync::Arc;

use serde_json::Value;

use super::*;
use crate::{load::with_top_level_keys, models::ImagePositions};

const BOUND: f32 = 3e-4;

fn number(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

/// The model of a recorded checkpoint and the golden.
fn read(name: &str) -> (Box<dyn Model>, Value) {
    let name = format!("../towers/{name}");
    let folder = checkpoint::folder(&name);
    let text = std::fs::read_to_string(checkpoint::recorded().join(&name).join("golden.json"));
    let golden = serde_json::from_str(&text.expect("golden.json")).expect("JSON");
    let checkpoint = Checkpoint::Folder(folder.path().into());
    let config = checkpoint.config().expect("config");
    let family = models::family(&config).expect("a family");
    let declared = QuantizationConfig::from_config(&config).expect("declared");
    let files = checkpoint.weight_files().expect("files");
    let text = with_top_level_keys(models::text_config(&config), &config);
    let types = Types { activations: Some(Dtype::Float32), weights: None };
    let layout = family.layout(&text);
    let weights = Weights::new(files, &layout, types, declared, Box::new(|_, _| {})).expect("weights");
    let model = (family.load)(&text, &weights).expect("loads");
    weights.all_used().expect("all of it is needed");
    (model, golden)
}

/// Image `index` of a golden, with `values` numbers in its tensor.
fn image(golden: &Value, index: usize, tokens: usize, values: usize) -> Image {
    let recorded = &golden["images"][index];
    let spec = serde_json::json!({"dtype": "F32", "shape": [values], "mean": 0.0, "spread": 1.0});
    let seed = golden["seed"].as_u64().expect("a seed");
    let bytes = checkpoint::values(&format!("pixels.{index}"), seed, &spec);
    let values = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    let (rows, columns) = (number(&recorded["rows"]), number(&recorded["columns"]));
    let run = 0..tokens;
    Image {
        positions: vec![run],
        digest: [index as u8; 32],
        tensors: Arc::from([ImageTensor { rows, columns, values }]),
    }
}

/// The number of values that the tower accepts for an image: of planes, or of patches.
fn fitting(golden: &Value, index: usize, tokens: usize, tower: &dyn models::Tower) -> Image {
    let recorded = &golden["images"][index];
    let places = number(&recorded["rows"]) * number(&recorded["columns"]);
    let candidates = (1..=300).map(|values| image(golden, index, tokens, places * values));
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
    let folder = checkpoint::recorded().join("../towers");
    let entries: Vec<_> = std::fs::read_dir(folder).expect("goldens").collect();
    assert!(entries.len() >= 8, "the goldens are there");
    for entry in entries {
        check(&entry.expect("an entry").file_name().to_string_lossy());
    }
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
