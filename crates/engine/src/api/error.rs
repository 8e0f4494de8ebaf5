//! Why a model could not be loaded.

use super::bytes::megabytes;

/// One sentence that names the file, tensor or key at fault.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{path}: {message}")]
    File { path: String, message: String },
    #[error("config.json: {0}")]
    Config(String),
    #[error("{0}")]
    Options(String),
    #[error("model_type `{found}` is not supported; supported: {supported}")]
    UnknownModelType { found: String, supported: String },
    #[error("the checkpoint has no tensor {0}")]
    MissingTensor(String),
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    WrongShape { name: String, found: Vec<i32>, expected: Vec<i32> },
    #[error("tensor {name}: {message}")]
    BadTensor { name: String, message: String },
    #[error(
        "the checkpoint holds {count} tensors that a model of this config.json does not compute with, {first} among them"
    )]
    UnusedTensors { first: String, count: usize },
    #[error(transparent)]
    Mlx(#[from] mlx::Error),
    #[error(
        "loading it takes up to {} of memory, and what runs leaves {} of the limit of {}; raise the memory limit, or load it when \
         fewer requests run",
        megabytes(*needs),
        megabytes(*free),
        megabytes(*limit)
    )]
    MemoryFull { needs: usize, free: usize, limit: usize },
    #[error("the model failed while loading: {0}")]
    Panicked(String),
}

pub type Result<T> = std::result::Result<T, LoadError>;
