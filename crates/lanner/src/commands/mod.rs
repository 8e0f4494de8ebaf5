//! The commands; each takes its own configuration.

mod chat;
mod ids;
mod perplexity;
mod quantize;
mod run;
mod serve;

pub use chat::chat;
pub use quantize::quantize;
pub use run::run;
pub use serve::serve;

/// Why a command ended early, as one sentence for stderr.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("cannot listen on {address}: {error}{}", port_hint(error))]
    Listen { address: std::net::SocketAddr, error: std::io::Error },
    #[error(transparent)]
    Open(#[from] crate::model::OpenError),
    #[error(transparent)]
    Prompt(#[from] crate::model::PromptError),
    #[error(transparent)]
    Request(#[from] engine::RequestError),
    #[error("{0}")]
    Quantize(#[from] engine::quantize::QuantizeError),
    #[error("cannot read {}: {error}", path.display())]
    Read { path: std::path::PathBuf, error: std::io::Error },
    #[error("the text has {tokens} tokens; perplexity needs {least} or more")]
    ShortText { tokens: usize, least: usize },
    #[error("cannot write {}: {error}", path.display())]
    Write { path: std::path::PathBuf, error: std::io::Error },
    #[error("the terminal cannot be read: {0}")]
    Terminal(#[from] rustyline::error::ReadlineError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn port_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "\nhint: another server runs there; choose a port with --port, or 0 for any"
        }
        _ => "",
    }
}
