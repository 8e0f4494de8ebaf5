//! Recorded goldens, image files, and pixels by the recipe of `tools/goldens/vision_images.py`.

use std::{fs, path::PathBuf};

use lanner_vision::{ConfigFiles, Processor, RgbImage};
use ring::digest::{SHA256, digest};
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Everything that was recorded of transformers.
pub(crate) fn goldens() -> Value {
    let text = fs::read_to_string(folder().join("goldens.json")).expect("goldens.json");
    serde_json::from_str(&text).expect("valid JSON")
}

/// A committed image file.
pub(crate) fn file(name: &str) -> Vec<u8> {
    fs::read(folder().join("images").join(name)).expect("a committed file")
}

/// The lower-case SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Squares of noise and of gradients.
pub(crate) fn pixels(width: u32, height: u32, seed: u32) -> RgbImage {
    let byte = |x: u32, y: u32, channel: u32| {
        if (x / 8 + y / 8) % 2 == 1 {
            return (x * 3 + y * 2 + channel * 40) as u8;
        }
        let mut hash = x
            .wrapping_mul(0x9E37_79B1)
            .wrapping_add(y.wrapping_mul(0x85EB_CA77))
            .wrapping_add(channel.wrapping_mul(0xC2B2_AE3D))
            .wrapping_add(seed.wrapping_mul(0x27D4_EB2F));
        hash ^= hash >> 15;
        hash = hash.wrapping_mul(0x2C1B_3C6D);
        ((hash ^ (hash >> 12)) >> 24) as u8
    };
    let pixel = |x, y| (0..3).map(move |channel| byte(x, y, channel));
    let data = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    RgbImage { width, height, data }
}

/// The processor of a recorded family.
pub(crate) fn processor(family: &Value) -> Processor {
    let text = |name: &str| (!family[name].is_null()).then(|| family[name].to_string());
    let (preprocessor, processor) = (text("preprocessor_config"), text("processor_config"));
    let files = ConfigFiles { preprocessor: preprocessor.as_deref(), processor: processor.as_deref() };
    Processor::from_config(files).expect("a recorded configuration")
}

/// The processor of a family of `goldens.json`.
pub(crate) fn named_processor(name: &str) -> Processor {
    processor(&goldens()["families"][name])
}
