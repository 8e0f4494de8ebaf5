//! The commands of the program, each with its own configuration.

mod bench;
mod cache;
mod chat;
mod doctor;
mod eval;
mod history;
mod ids;
mod launch;
mod models;
mod ngram;
mod packaging;
mod paths;
mod perplexity;
mod pull;
mod quantize;
mod remote;
mod rm;
mod run;
mod serve;
mod service;
mod show;
mod speculate;
mod stats;
mod top;
mod tune;

pub use self::eval::eval;
pub use bench::bench;
pub use cache::cache;
pub use chat::chat;
pub use doctor::doctor;
pub use history::history;
pub use launch::launch;
pub use models::models;
pub use ngram::{build as ngram_build, show as ngram_show};
pub use packaging::{completions, man};
pub use paths::paths;
pub use pull::pull;
pub use quantize::quantize;
pub use remote::ps;
pub use rm::rm;
pub use run::run;
pub use serve::{ends_within, serve};
pub use service::{logs, start, status, stop};
pub use show::show;
pub use stats::stats;
pub use top::top;
pub use tune::tune;

use crate::{config::ModelConfig, memory, terminal::say};

/// Why a command failed, in one sentence for stderr.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("cannot listen on {address}: {error}{}", port_hint(error))]
    Listen { address: std::net::SocketAddr, error: std::io::Error },
    #[error(
        "no Lanner server answers at {url}: {error}\nhint: start one with lanner serve or lanner start, or name another with --host and --port"
    )]
    NoServer { url: String, error: String },
    #[error("the server at {url} answers {status}: {message}")]
    Refused { url: String, status: u16, message: String },
    #[error(transparent)]
    Hub(#[from] crate::hub::HubError),
    #[error("{0} is built in and not in the cache")]
    BuiltIn(&'static str),
    #[error("cannot ask whether to remove {0}: stdin is not a terminal\nhint: add --yes")]
    NoConfirmation(String),
    /// The whole sentence.
    #[error("{0}")]
    Mcp(String),
    /// The whole sentence.
    #[error("{0}")]
    NotWritten(String),
    #[error("{0} was not removed")]
    NotRemoved(String),
    #[error(transparent)]
    Open(#[from] crate::loading::OpenError),
    #[error(transparent)]
    Prompt(#[from] crate::model::PromptError),
    #[error(transparent)]
    Attach(#[from] crate::attach::AttachError),
    #[error(transparent)]
    Request(#[from] engine::RequestError),
    #[error("{0}")]
    Quantize(#[from] engine::quantize::QuantizeError),
    #[error("cannot read {}: {error}", path.display())]
    Read { path: std::path::PathBuf, error: std::io::Error },
    #[error("the text has {tokens} token{}; perplexity needs {least} or more", if *tokens == 1 { "" } else { "s" })]
    ShortText { tokens: usize, least: usize },
    #[error(
        "a prompt of {prompt} tokens and {generate} new ones do not fit into the model's context of {context}"
    )]
    Context { prompt: usize, generate: usize, context: usize },
    #[error("answers differ from those of plain decoding: {0}")]
    AnswersDiffer(String),
    #[error("cannot read or change the disk cache in {}: {error}", folder.display())]
    Cache { folder: std::path::PathBuf, error: std::io::Error },
    #[error("{}, line {line}: {problem}", path.display())]
    Corpus { path: std::path::PathBuf, line: usize, problem: String },
    #[error(transparent)]
    Table(#[from] engine::ngrams::NgramTableError),
    #[error("cannot write {}: {error}", path.display())]
    Write { path: std::path::PathBuf, error: std::io::Error },
    #[error(transparent)]
    Tune(#[from] crate::tune::TuneError),
    #[error(transparent)]
    Eval(#[from] ::eval::EvalError),
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(
        "there are no conversations in {}\nhint: lanner chat saves its own, and the web page of lanner serve too", .0.display()
    )]
    NoStore(std::path::PathBuf),
    /// The whole sentence.
    #[error("{0}")]
    Chat(String),
    #[error("cannot read the terminal: {0}")]
    Terminal(#[from] rustyline::error::ReadlineError),
    #[error(transparent)]
    Service(#[from] crate::service::ServiceError),
    #[error(transparent)]
    Launch(#[from] crate::launch::LaunchError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Names what the memory mode comes to, if the user chose one.
fn say_memory_mode(model: &ModelConfig) {
    if model.is_memory_mode_named {
        say(format_args!("lanner: {}", memory::summary(model.memory_mode, &model.options)));
    }
}

fn port_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "\nhint: another server runs there; choose a port with --port, or 0 for any"
        }
        _ => "",
    }
}
