//! Untrusted image files to the input of vision towers, as transformers computes it; it runs no
//! tower and knows nothing of tensors on a device.
//!
//! Pixels equal those of transformers (`load_image`, then the torchvision image processor) to the
//! bit for PNG, WebP and GIF, and within 4 of 255 for decoded JPEG (grey, 4:4:4, 4:2:2 and 4:2:0).
//! Sizes, tokens and memory are known before pixels are decoded.
//!
//! ```
//! use lanner_vision::{ConfigFiles, Processor};
//!
//! let config = r#"{
//!     "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2,
//!     "size": {"shortest_edge": 65536, "longest_edge": 16777216}
//! }"#;
//! let files = ConfigFiles { preprocessor: Some(config), processor: None };
//! let processor = Processor::from_config(files)?;
//! assert_eq!(processor.plan(1000, 600)?.num_image_tokens(), 31 * 19);
//! # Ok::<(), lanner_vision::Error>(())
//! ```

mod config;
mod content;
mod decode;
mod error;
mod families;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod limits;
mod normalize;
mod orientation;
mod patches;
mod plan;
mod processor;
mod read;
mod resize;

pub use config::ConfigFiles;
pub use content::{Detail, EncodedImage, ImagePart, ImageSource, PartError};
pub use decode::{Header, decode};
pub use error::{Error, Result};
pub use format::Format;
pub use limits::{Deadline, Limits};
pub use orientation::Orientation;
pub use plan::{Layout, Piece, Plan, View};
pub use processor::{Preprocessed, Processor, Tensor};
pub use resize::Filter;

/// Pixels of an upright image: rows of red, green and blue bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// `3 * width * height` bytes.
    pub data: Vec<u8>,
}
