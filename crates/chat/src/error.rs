//! The crate's errors.

use std::path::{Path, PathBuf};

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a conversation or text could not be converted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the checkpoint could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file of the checkpoint is not valid JSON of the expected form.
    #[error("{file} cannot be used: {message}")]
    Json {
        /// The file's name.
        file: String,
        /// The cause.
        message: String,
    },
    /// `tokenizer.json` is invalid or unsupported.
    #[error("tokenizer.json cannot be used: {0}")]
    Tokenizer(String),
    /// The tokenizer cannot encode a text.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
    /// The checkpoint has no chat template.
    #[error(
        "{0} has no chat template: add a chat_template.jinja, or send plain text to the completions endpoint"
    )]
    NoTemplate(PathBuf),
    /// The chat template is not valid Jinja.
    #[error("the chat template does not parse: {0}")]
    TemplateSyntax(String),
    /// The chat template failed on this conversation.
    #[error("the chat template failed on this conversation: {0}")]
    TemplateRender(String),
    /// The chat template called `raise_exception`: it does not accept the conversation.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The chat template exceeded its step limit.
    #[error("the chat template did not finish within {0} steps: it may be endless")]
    OutOfFuel(u64),
    /// The chat template exceeded its memory or work limit: it is hostile, or the conversation is
    /// huge.
    #[error(
        "the chat template is too costly for this conversation: {0}; shorten the conversation or fix the template"
    )]
    TooCostly(&'static str),
    /// The conversation needs more memory than other renderings leave now.
    #[error(
        "rendering this conversation needs memory that other requests are using; try again later, or shorten it"
    )]
    RenderMemoryInUse,
    /// The chat template exceeded its output limit.
    #[error("the chat template wrote more than {0} bytes: shorten the conversation or fix the template")]
    PromptTooLong(usize),
    /// A message of the request is malformed or unsupported.
    #[error("messages[{index}]: {message}")]
    Message {
        /// Its index in the request.
        index: usize,
        /// The reason.
        message: String,
    },
    /// A stop string is empty.
    #[error("stop[{0}] is empty: a stop string needs at least one character")]
    EmptyStop(usize),
    /// A grammar cannot be compiled, or an answer cannot follow it.
    #[error("the grammar cannot be used: {0}")]
    Grammar(String),
}

impl Error {
    /// Whether the request is at fault (400), not the checkpoint (500) or the moment (503).
    pub fn is_request_error(&self) -> bool {
        !matches!(
            self,
            Self::Read { .. }
                | Self::Json { .. }
                | Self::Tokenizer(_)
                | Self::NoTemplate(_)
                | Self::TemplateSyntax(_)
                | Self::RenderMemoryInUse
        )
    }
}

/// Reads a file of at most `max_bytes`.
pub(crate) fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    files::read(path, max_bytes).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Parses JSON; `file` names it in the error.
pub(crate) fn parse_json(file: &str, bytes: &[u8]) -> Result<serde_json::Value> {
    serde_json::from_slice(bytes).map_err(|e| Error::Json { file: file.to_owned(), message: e.to_string() })
}
