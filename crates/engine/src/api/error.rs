//! Why a model could not be loaded.

use super::bytes::megabytes;

/// One sentence that names the file, tensor or key at fault.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read or does not have the required content.
    #[error("{path}: {message}")]
    File {
        /// Path or name of the file.
        path: String,
        /// The reason.
        message: String,
    },
    /// A value of config.json is missing, invalid or not supported.
    #[error("config.json: {0}")]
    Config(String),
    /// The [`Options`](crate::Options) do not suit the checkpoint or the machine.
    #[error("{0}")]
    Options(String),
    /// No family of Lanner has this `model_type`.
    #[error("model_type `{found}` is not supported; supported: {supported}")]
    UnknownModelType {
        /// The type of config.json.
        found: String,
        /// All supported types, separated by commas.
        supported: String,
    },
    /// The checkpoint lacks this tensor.
    #[error("the checkpoint has no tensor {0}")]
    MissingTensor(String),
    /// A tensor has another shape than config.json implies.
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    WrongShape {
        /// Name of the tensor.
        name: String,
        /// Its shape in the checkpoint.
        found: Vec<i32>,
        /// The shape that follows from config.json.
        expected: Vec<i32>,
    },
    /// A tensor cannot be used, for example because of its type.
    #[error("tensor {name}: {message}")]
    BadTensor {
        /// Name of the tensor.
        name: String,
        /// The reason.
        message: String,
    },
    /// The checkpoint has tensors that the model does not use.
    #[error(
        "the checkpoint holds {count} tensors that a model of this config.json does not compute with, {first} among them"
    )]
    UnusedTensors {
        /// Name of one of them.
        first: String,
        /// How many there are.
        count: usize,
    },
    /// MLX failed: memory, a device or a file.
    #[error(transparent)]
    Mlx(#[from] mlx::Error),
    /// The model does not fit into what is left of the memory limit.
    #[error(
        "loading it takes up to {} of memory, and what runs leaves {} of the limit of {}; raise the memory limit, or load it when \
         fewer requests run",
        megabytes(*needs),
        megabytes(*free),
        megabytes(*limit)
    )]
    MemoryFull {
        /// Bytes that loading may need.
        needs: usize,
        /// Bytes that are left of the limit.
        free: usize,
        /// The memory limit in bytes.
        limit: usize,
    },
    /// The engine's thread panicked or did not start; the text is the message.
    #[error("the model failed while loading: {0}")]
    Panicked(String),
}

/// Result of loading a model.
pub(crate) type Result<T> = std::result::Result<T, LoadError>;
