//! How a model takes images: its image processor, and the tokens of an image in a prompt.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use chat::{Template, Tokenizer};
use engine::{ImageTensor, ModelInfo};
use mcp::Cancel;
use serde_json::Value;
use vision::{ConfigFiles, Detail, Limits, Plan, Processor};

use super::PromptError;
use crate::{
    image::{ImageError, ImageFile, LIMITS},
    model_files,
    source::ModelLocation,
};

/// Most tokens of an image of `detail: low`.
const LOW_DETAIL_TOKENS: u32 = 256;

/// Image preparation for a model with a vision tower.
#[derive(Debug)]
pub struct Vision {
    processor: Processor,
    /// For `detail: low`.
    low: Processor,
    /// The token in whose place the tower's features stand.
    pub(super) image_token_id: u32,
    /// Whether the template writes images in results of tools; found when one is there.
    writes_tool_images: OnceLock<bool>,
}

/// Why a model takes no images.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVision {
    #[error("{0} takes no images; send text, or load a model with vision")]
    TextModel(String),
    #[error(
        "this conversion of {0} has no vision tower, so it takes no images; load one that keeps the tower, or send text"
    )]
    Dropped(String),
    #[error("{name} takes no images here: {reason}")]
    Config { name: String, reason: String },
}

/// An image of a prompt, not yet decoded.
#[derive(Clone, Debug)]
pub struct PromptImage {
    pub file: Arc<ImageFile>,
    /// Runs of the prompt's image tokens.
    pub positions: Vec<Range<usize>>,
}

/// Limits that end the decoding of a prompt's images early; by default there are none.
#[derive(Clone, Debug, Default)]
pub struct DecodingLimits {
    /// Most time for all images together.
    pub timeout: Option<Duration>,
    /// The request's own.
    pub deadline: Option<Instant>,
    pub cancel: Cancel,
}

impl DecodingLimits {
    fn check(&self) -> Result<(), PromptError> {
        match self.deadline {
            _ if self.cancel.is_cancelled() => Err(PromptError::Cancelled),
            Some(deadline) if deadline <= Instant::now() => Err(PromptError::TimeIsUp),
            _ => Ok(()),
        }
    }
}

impl Vision {
    /// Image preparation for the model at `location`; `max_tokens` limits the tokens of an image.
    ///
    /// # Errors
    /// It takes no images; the error says why.
    pub fn open(
        name: &str,
        location: &ModelLocation,
        info: &ModelInfo,
        tokenizer: &Tokenizer,
        max_tokens: u32,
    ) -> Result<Vision, NoVision> {
        let engine_token = match info.vision {
            engine::Vision::None => return Err(NoVision::TextModel(name.to_owned())),
            engine::Vision::Dropped => return Err(NoVision::Dropped(name.to_owned())),
            engine::Vision::Tower { image_token_id } => image_token_id,
        };
        let refused = |reason| NoVision::Config { name: name.to_owned(), reason };
        let texts = model_files::processor_configs(location);
        let [preprocessor, processor] = texts.each_ref().map(Option::as_deref);
        let vision = Vision::new(ConfigFiles { preprocessor, processor }, tokenizer, max_tokens);
        let vision = vision.map_err(refused)?;
        match vision.image_token_id {
            token if token == engine_token => Ok(vision),
            token => Err(refused(format!(
                "its image token is {engine_token} by config.json and {token} by its tokenizer"
            ))),
        }
    }

    /// # Errors
    /// The configuration is not supported, the tokenizer lacks the image token, or the model cannot
    /// have as few tokens for an image.
    pub fn new(files: ConfigFiles, tokenizer: &Tokenizer, max_tokens: u32) -> Result<Vision, String> {
        let whole = Processor::from_config(files).map_err(|error| error.to_string())?;
        let processor = whole.with_max_image_tokens(max_tokens);
        let processor = processor.map_err(|_| {
            format!("its images cannot have as few as {max_tokens} tokens; raise --max-image-tokens")
        })?;
        // A family with larger images only has no less detailed ones.
        let low = processor.with_max_image_tokens(LOW_DETAIL_TOKENS).unwrap_or_else(|_| processor.clone());
        let token = processor.image_token();
        let image_token_id = tokenizer.token_to_id(token);
        let image_token_id = image_token_id.ok_or_else(|| format!("its tokenizer has no token `{token}`"))?;
        Ok(Vision { processor, low, image_token_id, writes_tool_images: OnceLock::new() })
    }

    /// The text that a template prints for an image.
    pub(super) fn placeholder(&self) -> &str {
        self.processor.placeholder()
    }

    /// The text of the token in whose place the tower's features stand.
    pub(super) fn image_token(&self) -> &str {
        self.processor.image_token()
    }

    /// Messages with images where the template writes them.
    pub(super) fn placed(&self, messages: Vec<Value>, template: &Template) -> Vec<Value> {
        let in_tools = |message: &Value| message["role"] == "tool" && message["content"].is_array();
        let is_written =
            || *self.writes_tool_images.get_or_init(|| template.writes_tool_images(self.placeholder()));
        match messages.iter().any(in_tools) && !is_written() {
            true => chat::into_user_turns(messages),
            false => messages,
        }
    }

    fn processor(&self, detail: Detail) -> &Processor {
        match detail {
            Detail::Low => &self.low,
            Detail::Auto | Detail::High => &self.processor,
        }
    }

    /// The tokens of an image, by its size alone.
    ///
    /// # Errors
    /// The model has no tokens for such a size.
    pub(super) fn plan(&self, file: &ImageFile) -> Result<Plan, ImageError> {
        let (width, height) = file.header.size();
        let plan = self.processor(file.detail).plan(width, height);
        plan.map_err(|error| refused(file, &error))
    }

    /// Maximum bytes while an image is decoded, and of its tensors afterwards.
    ///
    /// # Errors
    /// The model has no tokens for its size, or it takes too much.
    pub fn memory(&self, file: &ImageFile) -> Result<ImageMemory, ImageError> {
        let processor = self.processor(file.detail);
        let decoding = processor.memory(&file.header).map_err(|error| refused(file, &error))?;
        if decoding > LIMITS.max_memory {
            let reason = format!(
                "decoding the image takes {decoding} bytes, more than the limit of {}; send a smaller one",
                LIMITS.max_memory
            );
            return Err(ImageError { field: file.field.clone(), reason });
        }
        let plan = self.plan(file)?;
        let in_view = |view: &vision::View| u64::from(view.width) * u64::from(view.height);
        let floats = 3 * plan.views.iter().map(in_view).sum::<u64>() * repeats(processor.layout());
        let (width, height) = file.header.size();
        let pixels = u64::from(width) * u64::from(height);
        Ok(ImageMemory { decoding: to_usize(decoding), tensors: to_usize(4 * floats), pixels })
    }

    /// Decodes and preprocesses the images of a prompt, equal ones once.
    ///
    /// # Errors
    /// A file is damaged or took too long, or the limits are passed; they are checked between
    /// images, and the deadlines also while one is decoded.
    pub(super) fn load(
        &self,
        images: &[PromptImage],
        limits: &DecodingLimits,
    ) -> Result<Vec<engine::Image>, PromptError> {
        let end = limits.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut loaded: Vec<engine::Image> = Vec::with_capacity(images.len());
        for (index, PromptImage { file, positions }) in images.iter().enumerate() {
            limits.check()?;
            let earlier = images[..index].iter().position(|earlier| earlier.file.equals(file));
            let image = match earlier {
                Some(earlier) => loaded[earlier].clone(),
                None => self.load_one(file, end, limits)?,
            };
            loaded.push(engine::Image { positions: positions.clone(), ..image });
        }
        Ok(loaded)
    }

    /// Decodes and preprocesses one image, without its positions.
    fn load_one(
        &self,
        file: &ImageFile,
        end: Option<Instant>,
        limits: &DecodingLimits,
    ) -> Result<engine::Image, PromptError> {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        let timeouts = [end, limits.deadline].into_iter().flatten().map(left);
        let timeout = timeouts.fold(LIMITS.timeout, Duration::min);
        let found = self.processor(file.detail).process(&file.encoded.bytes, &Limits { timeout, ..*LIMITS });
        let found = match found {
            Ok(found) => found,
            Err(vision::Error::DeadlineExceeded) if end.is_some_and(|end| left(end).is_zero()) => {
                limits.check()?;
                let seconds = limits.timeout.unwrap_or_default().as_secs_f64();
                let reason = format!(
                    "the request's images were not decoded within {seconds} s; send fewer or smaller ones"
                );
                return Err(ImageError { field: file.field.clone(), reason }.into());
            }
            Err(error) => {
                limits.check()?;
                return Err(refused(file, &error).into());
            }
        };
        let tensors = found.tensors.into_iter();
        let tensors =
            tensors.map(|vision::Tensor { rows, columns, values, .. }| ImageTensor { rows, columns, values });
        Ok(engine::Image { positions: vec![], digest: found.digest, tensors: tensors.collect() })
    }
}

/// Bytes that an image takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageMemory {
    /// While it is decoded.
    pub decoding: usize,
    /// Bytes of its tensors, until the engine has read the prompt.
    pub tensors: usize,
    /// Pixels of its file.
    pub pixels: u64,
}

fn repeats(layout: vision::Layout) -> u64 {
    match layout {
        vision::Layout::MergeOrder { frames, .. } => frames.into(),
        vision::Layout::Planes | vision::Layout::Raster { .. } => 1,
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn refused(file: &ImageFile, error: &vision::Error) -> ImageError {
    ImageError { field: file.field.clone(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use vision::EncodedImage;

    use super::*;
    use crate::{builtin::BUILTIN, image::tests::PNG_BYTES};

    fn vision() -> Vision {
        let preprocessor =
            r#"{"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "min_pixels": 1024}"#;
        let files = ConfigFiles { preprocessor: Some(preprocessor), processor: None };
        let tokenizer = Tokenizer::from_bytes(BUILTIN.tokenizer.as_bytes(), None).unwrap();
        Vision::new(files, &tokenizer, 4096).unwrap()
    }

    fn image(detail: Detail, position: usize) -> PromptImage {
        let file = ImageFile::new(EncodedImage::new(PNG_BYTES.to_vec()), detail, "a".into()).unwrap();
        PromptImage { file: file.into(), positions: std::iter::once(position..position + 1).collect() }
    }

    #[test]
    fn equal_images_are_decoded_once_and_keep_their_positions() {
        let images = [image(Detail::Auto, 1), image(Detail::Auto, 5), image(Detail::Low, 9)];
        let loaded = vision().load(&images, &DecodingLimits::default()).unwrap();
        assert!(Arc::ptr_eq(&loaded[0].tensors, &loaded[1].tensors));
        assert!(!Arc::ptr_eq(&loaded[0].tensors, &loaded[2].tensors));
        let starts: Vec<usize> = loaded.iter().map(|image| image.positions[0].start).collect();
        assert_eq!(starts, [1, 5, 9]);
    }

    #[test]
    fn decoding_ends_at_each_limit() {
        let ended = |limits| vision().load(&[image(Detail::Auto, 0)], &limits).unwrap_err().to_string();
        let cancelled = DecodingLimits::default();
        cancelled.cancel.cancel();
        assert_eq!(ended(cancelled), "the request was cancelled while its images were decoded");
        let late = DecodingLimits { deadline: Some(Instant::now()), ..DecodingLimits::default() };
        assert_eq!(ended(late), "the request's time was up while its images were decoded");
        let slow = DecodingLimits { timeout: Some(Duration::ZERO), ..DecodingLimits::default() };
        assert_eq!(
            ended(slow),
            "a: the request's images were not decoded within 0 s; send fewer or smaller ones"
        );
    }
}
