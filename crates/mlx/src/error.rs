//! Errors other than our own bugs.

/// A failure of MLX, of the GPU or of a file, or a read as the wrong type.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MLX: {0}")]
    Mlx(#[from] cxx::Exception),
    #[error(transparent)]
    Cuda(#[from] crate::cuda::Fault),
    #[error("{file}: {message}")]
    File { file: String, message: String },
    #[error("asked for {asked} values of an array of {dtype}")]
    WrongType { asked: &'static str, dtype: &'static str },
}

pub type Result<T> = std::result::Result<T, Error>;

/// The text of a caught panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}
