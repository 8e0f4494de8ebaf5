//! Token limits, sizes that a model refuses, and configurations.

use std::sync::LazyLock;

use lanner_vision::{ConfigFiles, Error, Processor};
use proptest::prelude::*;

use crate::support::{goldens, named_processor, processor};

/// All recorded processors, read once.
static PROCESSORS: LazyLock<Vec<(String, Processor)>> = LazyLock::new(|| {
    let goldens = goldens();
    let families = goldens["families"].as_object().expect("a recorded value");
    families.iter().map(|(name, family)| (name.clone(), processor(family))).collect()
});

#[test]
fn qwen_refuses_aspect_ratios_above_200() {
    let processor = named_processor("qwen3_5");
    assert!(processor.plan(2000, 10).is_ok());
    assert_eq!(
        processor.plan(2001, 10).unwrap_err().to_string(),
        "the image has 2001x10 pixels, but one side must be at most 200 times the other; crop or pad it"
    );
}

#[test]
fn fewer_tokens_than_a_family_can_have_are_refused() {
    for (name, least) in [("qwen3_5", 200), ("gemma3", 256), ("gemma4", 70), ("lfm2_vl", 256)] {
        let processor = named_processor(name);
        assert!(processor.with_max_image_tokens(least).is_ok(), "{name}");
        assert!(matches!(processor.with_max_image_tokens(least - 1), Err(Error::Config { .. })), "{name}");
    }
}

proptest! {
    #[test]
    fn plan_within_token_limit_is_never_exceeded(
        (width, height) in (1..8192_u32, 1..8192_u32),
        max_tokens in 256..5000_u32,
    ) {
        for (name, processor) in &*PROCESSORS {
            let processor = processor.with_max_image_tokens(max_tokens).expect("a recorded value");
            match processor.plan(width, height) {
                Ok(plan) => {
                    prop_assert!(plan.num_image_tokens() <= max_tokens as usize, "{}", name);
                    prop_assert!(plan.num_image_tokens() > 0, "{}", name);
                    prop_assert!(plan.views.iter().all(|view| view.width > 0 && view.height > 0));
                }
                Err(error) => prop_assert!(matches!(error, Error::Size { .. }), "{}: {}", name, error),
            }
        }
    }
}

#[track_caller]
fn check_refused(preprocessor: Option<&str>, expected: &str) {
    let files = ConfigFiles { preprocessor, processor: None };
    let error = Processor::from_config(files).expect_err("a refused configuration").to_string();
    assert!(error.starts_with("preprocessor_config.json: "), "{error}");
    assert!(error.contains(expected), "{error}");
}

#[test]
fn unsupported_configurations_are_refused_by_name() {
    check_refused(None, "use a conversion that keeps the vision part");
    check_refused(Some("{"), "EOF");
    check_refused(Some("{}"), "image_processor_type \"\" is not supported");
    check_refused(Some(r#"{"image_processor_type":"CLIPImageProcessor"}"#), "CLIPImageProcessor");
    let gemma3 = |rest: &str| format!(r#"{{"image_processor_type":"Gemma3ImageProcessor",{rest}}}"#);
    check_refused(Some(&gemma3(r#""do_pan_and_scan":true"#)), "do_pan_and_scan true is not supported");
    check_refused(Some(&gemma3(r#""do_resize":false"#)), "do_resize false is not supported");
    check_refused(Some(&gemma3(r#""resample":1"#)), "resample 1 is not supported");
    check_refused(Some(&gemma3(r#""image_std":[0,1,1]"#)), "must not be zero");
    check_refused(Some(&gemma3(r#""size":{"height":0,"width":9}"#)), "size.height is 0");
    let qwen = r#"{"image_processor_type":"Qwen2VLImageProcessor","min_pixels":9,"max_pixels":8}"#;
    check_refused(Some(qwen), "9 to 8 pixels");
    let tiles = r#"{"image_processor_type":"Lfm2VlImageProcessor","max_tiles":4000000000}"#;
    check_refused(Some(tiles), "max_tiles is 4000000000, not between 1 and 64");
    let gemma4 = r#"{"image_processor_type":"Gemma4ImageProcessor","max_soft_tokens":100}"#;
    check_refused(Some(gemma4), "max_soft_tokens is 100");
    let preprocessor = Some(r#"{"image_processor_type":"Lfm2VlImageProcessorFast"}"#);
    let processor = Some(r#"{"processor_class":"Lfm2VlProcessor","use_image_special_tokens":false}"#);
    let error = Processor::from_config(ConfigFiles { preprocessor, processor }).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "processor_config.json: use_image_special_tokens false is not supported: remove it"
    );
}
