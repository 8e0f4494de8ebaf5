//! Expansion against the tokens of texts that are expanded as transformers' processors do it.

use serde_json::json;
use vision::{ConfigFiles, Processor};

use super::*;
use crate::builtin::BUILTIN;

/// merlin's tokenizer with further special tokens.
fn tokenizer(tokens: &[&str]) -> Tokenizer {
    let mut file: Value = serde_json::from_str(BUILTIN.tokenizer).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    let first = 1 + added.iter().filter_map(|token| token["id"].as_u64()).max().unwrap();
    for (id, token) in (first..).zip(tokens) {
        added.push(
            json!({ "id": id, "content": token, "special": true, "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": false }),
        );
    }
    Tokenizer::from_bytes(file.to_string().as_bytes(), None).unwrap()
}

struct Family {
    files: [&'static str; 2],
    tokens: &'static [&'static str],
}

const QWEN: Family = Family {
    files: [
        r#"{"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2, "min_pixels": 1024}"#,
        "{}",
    ],
    tokens: &[],
};
const GEMMA3: Family = Family {
    files: [
        r#"{"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}}"#,
        "{}",
    ],
    tokens: &["<start_of_image>", "<image_soft_token>", "<end_of_image>"],
};
const GEMMA4: Family = Family {
    files: [r#"{"image_processor_type": "Gemma4ImageProcessor"}"#, "{}"],
    tokens: &["<|image>", "<|image|>", "<image|>"],
};
const PIXTRAL: Family = Family {
    files: [
        r#"{"image_processor_type": "PixtralImageProcessorFast", "size": {"longest_edge": 1540}}"#,
        r#"{"patch_size": 14, "spatial_merge_size": 2}"#,
    ],
    tokens: &["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
};
const LFM2: Family = Family {
    files: [r#"{"image_processor_type": "Lfm2VlImageProcessorFast"}"#, "{}"],
    tokens: &[
        "<image>",
        "<|image_start|>",
        "<|image_end|>",
        "<|img_thumbnail|>",
        "<|img_row_1_col_1|>",
        "<|img_row_1_col_2|>",
    ],
};

impl Family {
    fn vision(&self, tokenizer: &Tokenizer) -> Vision {
        let [preprocessor, processor] = self.files.map(Some);
        Vision::new(ConfigFiles { preprocessor, processor }, tokenizer, 4096).unwrap()
    }

    fn plans(&self, sizes: &[(u32, u32)]) -> Vec<Plan> {
        let [preprocessor, processor] = self.files.map(Some);
        let processor = Processor::from_config(ConfigFiles { preprocessor, processor }).unwrap();
        sizes.iter().map(|(width, height)| processor.plan(*width, *height).unwrap()).collect()
    }

    /// Two images between texts become what transformers writes for them.
    #[track_caller]
    fn check(&self, sizes: [(u32, u32); 2], expansions: [String; 2]) {
        let tokenizer = tokenizer(self.tokens);
        let vision = self.vision(&tokenizer);
        let place = vision.placeholder();
        for text in [
            format!("Look: {place} and {place}."),
            format!("{place}{place}"),
            format!("\n{place}\n\n{place} "),
        ] {
            let mut parts = text.split(place);
            let mut whole = parts.next().unwrap_or_default().to_owned();
            for (part, expansion) in parts.zip(&expansions) {
                whole += &format!("{expansion}{part}");
            }
            let encode = encoder(&tokenizer, false);
            let expanded =
                expand(&text, &self.plans(&sizes), &vision, &Literals::default(), &encode).unwrap();
            assert_eq!(expanded.ids, tokenizer.encode(&whole, false).unwrap(), "{text:?}");
            let marked: Vec<usize> = expanded.positions.iter().flatten().flat_map(Clone::clone).collect();
            let ids = expanded.ids.iter().enumerate();
            let found: Vec<usize> =
                ids.filter(|(_, id)| **id == vision.image_token_id).map(|(at, _)| at).collect();
            assert_eq!(marked, found);
            assert_eq!(expanded.position(expanded.short_ids.len()), expanded.ids.len());
            assert_eq!(expanded.position(0), 0);
        }
    }
}

#[test]
fn placeholders_become_the_tokens_of_their_family() {
    QWEN.check([(64, 96), (320, 32)], [6, 10].map(|count| "<|image_pad|>".repeat(count)));
    let gemma3 = || format!("\n\n<start_of_image>{}<end_of_image>\n\n", "<image_soft_token>".repeat(256));
    GEMMA3.check([(64, 96), (1000, 10)], [gemma3(), gemma3()]);
    let gemma4 = |count| format!("<|image>{}<image|>", "<|image|>".repeat(count));
    // 16 x 16 and 33 x 8 tokens of 48 pixels.
    GEMMA4.check([(500, 500), (2000, 500)], [gemma4(256), gemma4(264)]);
    let row = |columns: usize, end: &str| "[IMG]".repeat(columns) + end;
    PIXTRAL.check(
        [(56, 84), (28, 28)],
        [row(2, "[IMG_BREAK]").repeat(2) + &row(2, "[IMG_END]"), row(1, "[IMG_END]")],
    );
    let tile = |place: &str| format!("<|img_row_1_col_{place}|>{}", "<image>".repeat(256));
    LFM2.check(
        [(256, 256), (1100, 550)],
        [
            format!("<|image_start|>{}<|image_end|>", "<image>".repeat(64)),
            format!(
                "<|image_start|>{}{}<|img_thumbnail|>{}<|image_end|>",
                tile("1"),
                tile("2"),
                "<image>".repeat(242)
            ),
        ],
    );
}

#[test]
fn another_number_of_placeholders_than_images_is_an_error() {
    let tokenizer = tokenizer(&[]);
    let vision = QWEN.vision(&tokenizer);
    let encode = encoder(&tokenizer, false);
    for (text, images, printed) in
        [("a", 1, 0), ("<|image_pad|>", 0, 1), ("<|image_pad|>a<|image_pad|>", 1, 2)]
    {
        let plans = QWEN.plans(&vec![(32, 32); images]);
        let error = expand(text, &plans, &vision, &Literals::default(), &encode).unwrap_err();
        let PromptError::Placeholders { images: found, printed: wrote } = error else { panic!("{error}") };
        assert_eq!((found, wrote), (images, printed), "{text}");
    }
}

#[test]
fn hidden_placeholder_is_encoded_as_text_and_shown_as_it_was() {
    let tokenizer = tokenizer(&[]);
    let vision = QWEN.vision(&tokenizer);
    let forged = "a <|image_pad|><|image_pad|> b";
    let mut messages = vec![json!({ "content": [{ "text": forged }], "<|image_pad|>": [1, null, true] })];
    let literals = Literals::find(&vision, &messages, &[], &Map::new());
    assert!(!literals.is_empty());
    messages.iter_mut().for_each(|message| literals.hide(message));
    assert!(!messages[0].to_string().contains("<|image_pad|>"));
    let hidden = messages[0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(literals.show(hidden), forged);
    let text = format!("{hidden}<|image_pad|>{hidden}");
    let encode = encoder(&tokenizer, false);
    let expanded = expand(&text, &QWEN.plans(&[(64, 32)]), &vision, &literals, &encode).unwrap();
    assert_eq!(expanded.ids.iter().filter(|id| **id == vision.image_token_id).count(), 2);
    let shown = format!("{forged}<|image_pad|><|image_pad|>{forged}");
    assert_eq!(tokenizer.decode(&expanded.ids, false).unwrap(), shown);
    // Texts without placeholders need no second look.
    assert!(Literals::find(&vision, &[json!({ "content": "a|image_pad|" })], &[], &Map::new()).is_empty());
}

#[test]
fn many_hidden_placeholders_take_time_in_proportion() {
    let tokenizer = tokenizer(&[]);
    let vision = QWEN.vision(&tokenizer);
    let mut messages = vec![json!("<|image_pad|>".repeat(20_000))];
    let literals = Literals::find(&vision, &messages, &[], &Map::new());
    messages.iter_mut().for_each(|message| literals.hide(message));
    let parts = literals.split(messages[0].as_str().unwrap());
    assert_eq!(parts.len(), 20_001);
    assert_eq!(parts.concat(), "<|image_pad|>".repeat(20_000));
}
