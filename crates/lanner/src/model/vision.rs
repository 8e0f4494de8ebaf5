//! How a model takes images: its image processor, and the tokens of an image in a prompt.

use std::{ops::Range, sync::Arc, sync::OnceLock};

use chat::{Template, Tokenizer};
use engine::{ImageTensor, ModelInfo};
use serde_json::Value;
use vision::{ConfigFiles, Detail, Plan, Processor};

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
        let pixels = |view: &vision::View| u64::from(view.width) * u64::from(view.height);
        let floats = 3 * plan.views.iter().map(pixels).sum::<u64>() * repeats(processor.layout());
        Ok(ImageMemory { decoding: to_usize(decoding), tensors: to_usize(4 * floats) })
    }

    /// Decodes and preprocesses an image of a prompt.
    ///
    /// # Errors
    /// Its file is damaged, or took too long.
    pub(super) fn load(&self, image: &PromptImage) -> Result<engine::Image, ImageError> {
        let file = &image.file;
        let found = self.processor(file.detail).process(&file.encoded.bytes, &LIMITS);
        let found = found.map_err(|error| refused(file, &error))?;
        let tensors = found.tensors.into_iter();
        let tensors =
            tensors.map(|vision::Tensor { rows, columns, values, .. }| ImageTensor { rows, columns, values });
        Ok(engine::Image {
            positions: image.positions.clone(),
            digest: found.digest,
            tensors: tensors.collect(),
        })
    }
}

/// Bytes that an image takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageMemory {
    /// While it is decoded.
    pub decoding: usize,
    /// Bytes of its tensors, until the engine has read the prompt.
    pub tensors: usize,
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
