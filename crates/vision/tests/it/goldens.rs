//! Decoded pixels, tensors and expansions beside those of transformers.

use lanner_vision::{Header, Limits, Piece, Plan, Processor, RgbImage, decode};
use serde_json::Value;

use crate::support::{file, goldens, named_processor, pixels, processor, sha256};

fn decoded(name: &str) -> RgbImage {
    let (bytes, limits) = (file(name), Limits::default());
    let header = Header::read(&bytes, &limits).unwrap_or_else(|error| panic!("{name}: {error}"));
    let image = decode(&bytes, &header, limits.deadline());
    image.unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn decoded_png_webp_and_gif_equal_pillow_to_the_bit() {
    let goldens = goldens();
    let files = goldens["files"].as_object().expect("a recorded value");
    let mut wrong = vec![];
    for (name, expected) in files.iter().filter(|(name, _)| !name.ends_with(".jpg")) {
        let image = decoded(name);
        let size = (
            expected["width"].as_u64().expect("a recorded value"),
            expected["height"].as_u64().expect("a recorded value"),
        );
        assert_eq!((image.width.into(), image.height.into()), size, "{name}");
        if sha256(&image.data) != expected["sha256"].as_str().expect("a recorded value") {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} differ");
    assert!(files.len() > 80);
}

#[test]
fn decoded_jpeg_is_within_four_of_pillow() {
    let goldens = goldens();
    let files = goldens["files"].as_object().expect("a recorded value").keys();
    for name in files.filter(|name| name.ends_with(".jpg")) {
        let (image, expected) = (decoded(name), decoded(&format!("{name}.png")));
        assert_eq!((image.width, image.height), (expected.width, expected.height), "{name}");
        let pairs = image.data.iter().zip(&expected.data);
        let largest = pairs.map(|(a, b)| a.abs_diff(*b)).max().expect("a recorded value");
        assert!(largest <= 4, "{name} differs by {largest}");
    }
}

#[test]
fn adobe_segment_of_jpeg_outweighs_identifiers_of_components() {
    let (original, limits) = (file("rgb_without_transform.jpg"), Limits::default());
    let mut renamed = original.clone();
    let frame = renamed.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    let scan = renamed.windows(2).position(|pair| pair == [0xff, 0xda]).expect("a scan");
    for component in 0..3 {
        let (in_frame, in_scan) = (frame + 10 + 3 * component, scan + 5 + 2 * component);
        assert_eq!((renamed[in_frame], renamed[in_scan]), (b"RGB"[component], b"RGB"[component]));
        (renamed[in_frame], renamed[in_scan]) = (component as u8 + 1, component as u8 + 1);
    }
    let pixels = |bytes: &[u8]| {
        let header = Header::read(bytes, &limits).expect("a valid file");
        decode(bytes, &header, limits.deadline()).expect("a valid file")
    };
    assert_eq!(pixels(&renamed), pixels(&original));
}

/// Runs of equal pieces, as the goldens count them.
fn runs(plan: &Plan, image_token: &str) -> Vec<(String, u64)> {
    let mut runs: Vec<(String, u64)> = vec![];
    for piece in &plan.expansion {
        let (text, count) = match piece {
            Piece::Text(text) => ((*text).to_owned(), 1),
            Piece::Special(token) => (token.clone(), 1),
            Piece::Image(count) => (image_token.to_owned(), *count as u64),
        };
        match runs.last_mut() {
            Some(last) if last.0 == text => last.1 += count,
            _ => runs.push((text, count)),
        }
    }
    runs
}

/// Compares one image; returns what differs.
fn check_image(processor: &Processor, expected: &Value) -> Result<(), String> {
    let number = |value: &Value| value.as_u64().expect("a recorded value") as usize;
    let (width, height) = (number(&expected["size"][0]) as u32, number(&expected["size"][1]) as u32);
    let image = pixels(width, height, number(&expected["seed"]) as u32);
    let found = processor.preprocess(&image, Limits::default().deadline());
    let found = found.map_err(|error| format!("{width}x{height}: {error}"))?;
    let expansion: Vec<(String, u64)> =
        serde_json::from_value(expected["expansion"].clone()).expect("a recorded value");
    if runs(&found.plan, processor.image_token()) != expansion {
        return Err(format!("{width}x{height}: {:?}, not {expansion:?}", found.plan.expansion));
    }
    let tensors = expected["tensors"].as_array().expect("a recorded value");
    if found.tensors.len() != tensors.len() {
        return Err(format!("{width}x{height}: {} tensors", found.tensors.len()));
    }
    for (index, (found, expected)) in found.tensors.iter().zip(tensors).enumerate() {
        let shape: Vec<usize> =
            expected["shape"].as_array().expect("a recorded value").iter().map(number).collect();
        let grid = (number(&expected["rows"]), number(&expected["columns"]));
        if found.shape != shape || (found.rows, found.columns) != grid {
            return Err(format!("{width}x{height}, tensor {index}: shape {:?}, not {shape:?}", found.shape));
        }
        let picked: Vec<f32> = serde_json::from_value(expected["picked"].clone()).expect("a recorded value");
        let length = found.values.len();
        let values: Vec<f32> = (0..7).map(|part| found.values[length * part / 7]).collect();
        let bytes: Vec<u8> = found.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        if values != picked || sha256(&bytes) != expected["sha256"].as_str().expect("a recorded value") {
            return Err(format!("{width}x{height}, tensor {index}: {values:?}, not {picked:?}"));
        }
    }
    Ok(())
}

#[test]
fn tensors_and_expansions_equal_transformers_to_the_bit() {
    let goldens = goldens();
    let (mut compared, mut wrong) = (0, vec![]);
    for (name, family) in goldens["families"].as_object().expect("a recorded value") {
        let processor = processor(family);
        let images =
            [&family["images"], &family["three"]].map(|images| images.as_array().expect("a recorded value"));
        for image in images.into_iter().flatten() {
            if image["error"] == true {
                continue;
            }
            compared += 1;
            wrong.extend(check_image(&processor, image).err().map(|error| format!("{name} {error}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 120, "{compared} compared");
}

#[test]
fn file_processed_equals_its_pixels_preprocessed() {
    let processor = named_processor("qwen3_5");
    for name in ["exif_6.png", "exif_6.webp", "exif_6.jpg", "palette.gif"] {
        let limits = Limits::default();
        let found = processor.process(&file(name), &limits).expect("a recorded value");
        assert_eq!(
            found,
            processor.preprocess(&decoded(name), limits.deadline()).expect("a recorded value"),
            "{name}"
        );
    }
}

#[test]
fn digest_depends_on_pixels_and_processor_only() {
    let (qwen, gemma) = (named_processor("qwen3_5"), named_processor("gemma4"));
    let digest = |processor: &Processor, name: &str| {
        processor.process(&file(name), &Limits::default()).expect("a recorded value").digest
    };
    // The same pixels in another container and another orientation are the same image.
    assert_eq!(digest(&qwen, "exif_1.png"), digest(&qwen, "exif_1.webp"));
    assert_ne!(digest(&qwen, "exif_1.png"), digest(&qwen, "exif_2.png"));
    assert_ne!(digest(&qwen, "exif_1.png"), digest(&gemma, "exif_1.png"));
}
