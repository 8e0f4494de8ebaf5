//! Errors of the configuration.

use std::path::PathBuf;

use engine::{RequestError, quantize::QuantizeError};

use super::api_keys::ApiKeyError;
use crate::bench::speculate::PROMPT_CLASSES;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the config file {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("the config file {} is not valid: {error}", path.display())]
    Parse { path: PathBuf, error: toml::de::Error },
    #[error(
        "there is no prompt: write one, pipe one in, or talk with `lanner chat`\n\
         hint: lanner run MODEL \"Why is the sky blue?\""
    )]
    NoPrompt,
    #[error("--ids: `{0}` is not a token id")]
    Ids(String),
    #[error("--shape {name}: {problem}")]
    Shape { name: String, problem: String },
    #[error("--chart {}: the file's name must end in .svg or .html", .0.display())]
    Chart(PathBuf),
    #[error("--texts: there is no kind `{name}`; there are {}", PROMPT_CLASSES.map(|class| class.name).join(", "))]
    Texts { name: String },
    #[error("--prompt sets the length of random prompts; with --speculate it needs --shape")]
    PromptWithoutShape,
    #[error("--batch {batch} is more than --max-batch {max_batch}")]
    Batch { batch: usize, max_batch: usize },
    #[error("--disk-cache needs the prefix cache in memory; remove --prefix-cache off")]
    DiskCacheAlone,
    #[error("--disk-cache-bits: there is no disk cache; set its size with --disk-cache")]
    BitsWithoutDiskCache,
    #[error("there is no home folder for the disk cache; set its folder with --cache-dir")]
    NoCacheDir,
    #[error("there is no home folder for the config file; name it with --config")]
    NoConfigFolder,
    #[error("there is no home folder for the store; set its file with --store")]
    NoStoreFolder,
    #[error("cannot read the file of MCP servers {}: {error}", path.display())]
    McpFile { path: PathBuf, error: std::io::Error },
    #[error("the file of MCP servers {} is not valid: {error}", path.display())]
    McpServers { path: PathBuf, error: mcp::ConfigError },
    #[error("--mcp-allow: the file of MCP servers has no server `{0}`")]
    McpAllow(String),
    #[error("there is no home folder for mcp.json; name the file of MCP servers: --mcp FILE")]
    NoMcpFile,
    /// Names the flag or config key.
    #[error("{0}")]
    Sampling(RequestError),
    #[error(transparent)]
    ApiKeys(#[from] ApiKeyError),
    #[error(transparent)]
    Format(#[from] QuantizeError),
    #[error(transparent)]
    Launch(#[from] crate::launch::LaunchError),
    #[error(transparent)]
    Service(#[from] crate::service::ServiceError),
    #[error(transparent)]
    Eval(#[from] eval::EvalError),
    #[error("HF_ENDPOINT is `{0}`; it must begin with https:// or http://")]
    Endpoint(String),
    #[error("{0} holds characters that no token has")]
    Token(String),
}
