//! MCP servers: the file that names them, and limits on their use.

use std::{env, fs, num::NonZeroU32, path::PathBuf, time::Duration};

use mcp::{Limits, Options, ServerList};

use super::{dirs::user_folder, error::ConfigError};
use crate::cli::{ChatMcpArgs, ServerArgs};

/// Calls that one request may make.
const MAX_CALLS: usize = 32;
/// Time that all calls of one request may take.
const MAX_TIME: Duration = Duration::from_secs(300);
/// Bytes of all results of one request.
const MAX_BYTES: usize = 1 << 20;

/// The servers of a file, and how they are used.
#[derive(Clone, Debug)]
pub struct McpConfig {
    pub servers: ServerList,
    /// Fields of the file that have no effect.
    pub ignored: Vec<String>,
    pub options: Options,
    /// Calls of the chat that need no question.
    pub allowed: Vec<AllowedCall>,
    /// Limits of one request to the server.
    pub max_calls: usize,
    pub max_time: Duration,
    /// Bytes of all results of one request.
    pub max_bytes: usize,
}

/// Calls that are made without asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedCall {
    All,
    Server(String),
    Tool { server: String, tool: String },
}

impl AllowedCall {
    fn new(text: &str) -> AllowedCall {
        match text.split_once('/') {
            _ if text == "*" => AllowedCall::All,
            Some((server, tool)) => AllowedCall::Tool { server: server.into(), tool: tool.into() },
            None => AllowedCall::Server(text.into()),
        }
    }

    pub fn covers(&self, of_server: &str, called: &str) -> bool {
        match self {
            AllowedCall::All => true,
            AllowedCall::Server(server) => server == of_server,
            AllowedCall::Tool { server, tool } => server == of_server && tool == called,
        }
    }

    fn server(&self) -> Option<&str> {
        match self {
            AllowedCall::All => None,
            AllowedCall::Server(server) | AllowedCall::Tool { server, .. } => Some(server),
        }
    }
}

impl McpConfig {
    /// MCP config of `lanner chat`; `None` without `--mcp`.
    ///
    /// # Errors
    /// The file cannot be read or is not valid, or `--mcp-allow` names a server that it lacks.
    pub(super) fn for_chat(
        args: ChatMcpArgs,
        proxy: Option<ureq::Proxy>,
    ) -> Result<Option<McpConfig>, ConfigError> {
        let Some(file) = args.mcp else { return Ok(None) };
        let mut config = McpConfig::read(file, args.mcp_timeout, proxy)?;
        config.allowed = args.mcp_allow.iter().map(|text| AllowedCall::new(text)).collect();
        let known = |name: &str| config.servers.servers.iter().any(|server| server.name == name);
        if let Some(name) = config.allowed.iter().filter_map(AllowedCall::server).find(|name| !known(name)) {
            return Err(ConfigError::McpAllow(name.to_owned()));
        }
        Ok(Some(config))
    }

    /// MCP config of `lanner serve`; `None`: neither flag nor config file names a file.
    ///
    /// # Errors
    /// The file cannot be read or is not valid.
    pub(super) fn for_server(
        args: &ServerArgs,
        file: &ServerArgs,
        proxy: Option<ureq::Proxy>,
    ) -> Result<Option<McpConfig>, ConfigError> {
        let Some(path) = args.mcp.clone().or_else(|| file.mcp.clone()) else { return Ok(None) };
        let mut config = McpConfig::read(path, args.mcp_timeout.or(file.mcp_timeout), proxy)?;
        let max_calls = args.mcp_max_calls.or(file.mcp_max_calls);
        config.max_calls = max_calls.map_or(MAX_CALLS, |calls| usize::from(calls.get()));
        Ok(Some(config))
    }

    fn read(
        path: Option<PathBuf>,
        timeout: Option<NonZeroU32>,
        proxy: Option<ureq::Proxy>,
    ) -> Result<McpConfig, ConfigError> {
        let path = path.or_else(mcp_file).ok_or(ConfigError::NoMcpFile)?;
        let text =
            fs::read_to_string(&path).map_err(|error| ConfigError::McpFile { path: path.clone(), error })?;
        let mut servers = ServerList::parse(&text, |name| env::var(name).ok())
            .map_err(|error| ConfigError::McpServers { path, error })?;
        let mut limits = Limits::default();
        if let Some(seconds) = timeout {
            limits.call = Duration::from_secs(seconds.get().into());
        }
        Ok(McpConfig {
            ignored: std::mem::take(&mut servers.ignored),
            servers,
            options: Options { limits, proxy },
            allowed: vec![],
            max_calls: MAX_CALLS,
            max_time: MAX_TIME.max(limits.call),
            max_bytes: MAX_BYTES,
        })
    }
}

/// The file of MCP servers that `--mcp` reads without a value; it need not exist.
pub(super) fn mcp_file() -> Option<PathBuf> {
    user_folder("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("mcp.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_call_covers_a_tool_a_server_or_all() {
        let covers = |text: &str| AllowedCall::new(text).covers("files", "read");
        assert_eq!(["*", "files", "files/read"].map(covers), [true; 3]);
        assert_eq!(["git", "files/write", "file", "read"].map(covers), [false; 4]);
    }
}
