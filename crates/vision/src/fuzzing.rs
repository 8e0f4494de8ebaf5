//! The entry point of the fuzz target: one image file, through every family.

use std::sync::OnceLock;

use crate::{ConfigFiles, Header, Limits, Processor, decode};

const CONFIGS: [&str; 5] = [
    r#"{"image_processor_type":"Qwen2VLImageProcessor","max_pixels":50176}"#,
    r#"{"image_processor_type":"Gemma3ImageProcessor"}"#,
    r#"{"image_processor_type":"Gemma4UnifiedImageProcessor","max_soft_tokens":70}"#,
    r#"{"image_processor_type":"PixtralImageProcessor","size":{"longest_edge":256}}"#,
    r#"{"image_processor_type":"Lfm2VlImageProcessor","max_tiles":2}"#,
];

fn processors() -> &'static [Processor] {
    static PROCESSORS: OnceLock<Vec<Processor>> = OnceLock::new();
    PROCESSORS.get_or_init(|| {
        let parse =
            |config| Processor::from_config(ConfigFiles { preprocessor: Some(config), processor: None });
        CONFIGS.into_iter().map(parse).collect::<Result<_, _>>().expect("valid configurations")
    })
}

/// Decodes an image file and preprocesses it for each family.
///
/// # Errors
/// The file is refused; that is no finding.
pub fn image(bytes: &[u8]) -> Result<(), String> {
    // Sizes that a fuzzer decodes thousands of times in a second.
    let limits = Limits { max_pixels: 100_000, max_memory: 64 << 20, ..Limits::default() };
    let header = Header::read(bytes, &limits).map_err(|error| error.to_string())?;
    let deadline = limits.deadline();
    let image = decode(bytes, &header, deadline).map_err(|error| error.to_string())?;
    assert_eq!((image.width, image.height), header.size());
    assert_eq!(image.data.len(), 3 * image.width as usize * image.height as usize);
    for processor in processors() {
        let Ok(plan) = processor.plan(image.width, image.height) else { continue };
        let found = processor.preprocess(&image, deadline).map_err(|error| error.to_string())?;
        assert_eq!(found.plan, plan);
        for tensor in &found.tensors {
            assert_eq!(tensor.values.len(), tensor.shape.iter().product::<usize>());
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../../fuzz/check_seeds.rs"]
mod check_seeds;

#[cfg(test)]
mod tests {
    use super::{check_seeds::check_seeds, image};

    #[test]
    fn seeds_of_image_are_valid() {
        check_seeds("image", image, 20);
    }
}
