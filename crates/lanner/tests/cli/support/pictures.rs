//! Pictures for requests, and a model that takes them: its processor and tokenizer are real, its
//! tower is not.

use base64::{Engine, prelude::BASE64_STANDARD};
use lanner::model::Vision;
use vision::ConfigFiles;

use super::server::{IMAGE_TOKEN, vision_tokenizer};

/// A template like Qwen's: the parts of a content one after the other.
pub(crate) const VISION_TEMPLATE: &str = "{#- Calls: <tool_call> -#}{%- for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}\
    <|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}\
    {%- if tools %}tools={{ tools | tojson }}\n{% endif %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// One token for 32 x 32 pixels.
const PROCESSOR: &str = r#"{"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 16777216}}"#;

pub(crate) fn vision(max_tokens: u32) -> Vision {
    let files = ConfigFiles { preprocessor: Some(PROCESSOR), processor: None };
    let vision = Vision::new(files, &vision_tokenizer(), max_tokens).unwrap();
    assert_eq!(vision_tokenizer().token_to_id("<|image_pad|>"), Some(IMAGE_TOKEN));
    vision
}

/// A PNG whose pixels are all of one shade.
pub(crate) fn png(width: u32, height: u32, shade: u8) -> Vec<u8> {
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    let row = vec![shade; 3 * width as usize];
    let mut stream = writer.stream_writer().unwrap();
    for _ in 0..height {
        std::io::Write::write_all(&mut stream, &row).unwrap();
    }
    stream.finish().unwrap();
    drop(writer);
    bytes
}

/// A PNG of these pixels, three bytes each.
pub(crate) fn png_of(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    bytes
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

pub(crate) fn data_uri(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", base64(bytes))
}
