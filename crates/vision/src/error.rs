//! Errors of this crate: each says what is wrong, with which numbers, and what to send instead.

use crate::Format;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an image or a preprocessor's configuration was refused.
///
/// All but [`Error::Config`] are about the image, so about a request; `Config` is about a
/// checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not of a supported format.
    #[error("the image is {found}; send a PNG, JPEG, WebP or GIF file")]
    UnsupportedFormat {
        /// What the first bytes look like.
        found: &'static str,
    },
    /// A feature of a supported format that is not decoded.
    #[error("the {format} image {what}; send it as {instead}")]
    UnsupportedFeature {
        /// The image's format.
        format: Format,
        /// A predicate, such as `has 12 bits per sample`.
        what: String,
        /// What to send instead.
        instead: &'static str,
    },
    /// The file is damaged, truncated or contradicts itself.
    #[error("the {format} image is damaged: {reason}; send a complete file")]
    Damaged {
        /// The image's format.
        format: Format,
        /// What contradicts the format.
        reason: String,
    },
    /// The file is also a file of another kind, or carries one.
    #[error("the {format} image {what}; send the image alone")]
    Polyglot {
        /// The image's format.
        format: Format,
        /// A predicate, such as `contains a ZIP archive`.
        what: String,
    },
    /// A limit on untrusted images.
    #[error("the image has {found} {unit}, more than the limit of {limit}; send a smaller one")]
    TooLarge {
        /// What the image has or needs.
        found: u64,
        /// What [`crate::Limits`] allows.
        limit: u64,
        /// What is counted, as in `pixels of width`.
        unit: &'static str,
    },
    /// Decoding or preprocessing passed the deadline.
    #[error("the image was not decoded within its time limit; send a smaller one")]
    DeadlineExceeded,
    /// A size that the model's preprocessor cannot map to patches.
    #[error("the image has {width}x{height} pixels, but {rule}")]
    Size {
        /// Width after orientation.
        width: u32,
        /// Height after orientation.
        height: u32,
        /// The rule of the model's preprocessor, and what to send instead.
        rule: String,
    },
    /// The preprocessor's configuration is missing, malformed or not supported.
    #[error("{file}: {reason}")]
    Config {
        /// The file, such as `preprocessor_config.json`.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    pub(crate) fn damaged(format: Format, reason: impl Into<String>) -> Error {
        Error::Damaged { format, reason: reason.into() }
    }
}
