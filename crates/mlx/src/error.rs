//! What can go wrong outside our own bugs.

/// MLX, a file or the memory failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MLX: {0}")]
    Mlx(#[from] cxx::Exception),
    #[error("{file}: {message}")]
    File { file: String, message: String },
    #[error("asked for {asked} values of an array of {dtype}")]
    WrongType { asked: &'static str, dtype: &'static str },
}

pub type Result<T> = std::result::Result<T, Error>;
