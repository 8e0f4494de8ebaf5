//! Arguments of the HTTP server; section `[server]` of the config file.

use std::{
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    path::PathBuf,
};

use clap::Args;
use serde::Deserialize;

use super::values::{CorsOrigin, HostAddress, ModelAlias, OneOrMany, ToolDialect};
use crate::{image_url::AllowedHost, keep_alive::KeepAlive};

/// Where to serve, to whom, and within which limits; `[server]` in the config file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Address to listen on: localhost, 0.0.0.0 for all networks, or an IP address
    /// [default: 127.0.0.1].
    #[arg(long, env = "LANNER_HOST", value_name = "ADDRESS")]
    pub host: Option<HostAddress>,
    /// Port to listen on; 0 picks a free one [default: 11436].
    #[arg(long, env = "LANNER_PORT")]
    pub port: Option<u16>,
    /// Require `Authorization: Bearer KEY` on all routes but /health; may be given several times.
    #[arg(long, env = "LANNER_API_KEY", value_name = "KEY", hide_env_values = true)]
    #[serde(deserialize_with = "OneOrMany::deserialize_list")]
    pub api_key: Vec<String>,
    /// File of API keys, one on each line: `name:key` or `key`, then limits of that key if wanted,
    /// as in `ann:sk-1234 max_parallel_requests=4 rpm_limit=60 tpm_limit=100000`. Empty lines and
    /// lines that begin with `#` are skipped.
    #[arg(long, alias = "api-key-file", env = "LANNER_API_KEYS_FILE", value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,
    /// Let clients with different API keys reuse each other's cached prefixes. That saves time and
    /// memory, but lets a client find out whether another one has sent the same text.
    #[arg(hide_short_help = true, long)]
    pub share_prefixes: bool,
    /// Let web pages of this origin use the server, as in https://app.example; `*` lets all. May be
    /// given several times.
    #[arg(long, env = "LANNER_CORS_ORIGIN", value_name = "ORIGIN|*")]
    pub cors_origin: Vec<CorsOrigin>,
    /// Also accept this name in Host and Origin headers; `*` accepts all. By default a loopback
    /// address accepts loopback names, any other address also IP addresses and names of the local
    /// network.
    #[arg(hide_short_help = true, long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Fetch images at https URLs of these hosts for requests that name them: `example.com`,
    /// `*.example.com` for hosts below it, `http://example.com` to allow http too, `*` for all; with
    /// commas, or several times. Only public addresses are reached [default: none is fetched].
    #[arg(
        hide_short_help = true,
        long,
        env = "LANNER_ALLOW_IMAGE_URLS",
        value_name = "HOSTS",
        value_delimiter = ','
    )]
    pub allow_image_urls: Vec<AllowedHost>,
    /// Largest request body, in MiB. Images come on top, up to 64 MiB in all [default: 16].
    #[arg(hide_short_help = true, long, value_name = "MIB")]
    pub body_limit: Option<usize>,
    /// Serve the model under this name [default: the folder's name].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Answer requests for NAME with MODEL, which takes what --model takes; may be repeated. It is
    /// loaded when the first request names it.
    #[arg(long, value_name = "NAME=MODEL")]
    pub alias: Vec<ModelAlias>,
    /// Most loaded models; a model that no request uses leaves for another, the one used longest
    /// ago first [default: as many as fit under --memory-limit, else into the machine's memory].
    #[arg(long, env = "LANNER_MAX_LOADED_MODELS", value_name = "MODELS")]
    pub max_loaded_models: Option<NonZeroUsize>,
    /// Unload a model this long after its last request: seconds, a duration such as 5m, or forever.
    /// Requests may say otherwise for their model [default: forever].
    #[arg(long, env = "LANNER_KEEP_ALIVE", value_name = "TIME", allow_hyphen_values = true)]
    pub keep_alive: Option<KeepAlive>,
    /// Let the model of --model expire and leave for others too; it is loaded again when needed.
    #[arg(long)]
    pub no_pin: bool,
    /// How the model writes tool calls; see docs/tools.md
    /// [default: what its chat template and tokenizer show].
    #[arg(hide_short_help = true, long, env = "LANNER_TOOL_DIALECT", value_name = "NAME")]
    pub tool_dialect: Option<ToolDialect>,
    /// Turn off the routes that load and pull models and those of the prefix cache; requests then
    /// load no models either.
    #[arg(long)]
    pub no_admin: bool,
    /// Let requests use the tools of the MCP servers in this file, which has `mcpServers` as other
    /// MCP clients do; any client that may send requests may call them. See docs/mcp.md [without
    /// FILE: lanner/mcp.json in $XDG_CONFIG_HOME or ~/.config; default: no MCP servers].
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    #[serde(deserialize_with = "given_file")]
    pub mcp: Option<Option<PathBuf>>,
    /// Seconds that a call of an MCP tool may take [default: 60].
    #[arg(hide_short_help = true, long, value_name = "SECONDS")]
    pub mcp_timeout: Option<NonZeroU32>,
    /// Most calls of MCP tools in one request [default: 32].
    #[arg(hide_short_help = true, long, value_name = "CALLS")]
    pub mcp_max_calls: Option<NonZeroU16>,
    /// Most open connections; idle ones are closed first, further ones get a 503 [default: 512].
    #[arg(hide_short_help = true, long, value_name = "CONNECTIONS")]
    pub max_connections: Option<NonZeroU16>,
    /// Seconds to receive a request head [default: 15].
    #[arg(hide_short_help = true, long, value_name = "SECONDS")]
    pub header_timeout: Option<NonZeroU32>,
    /// Seconds that a request body may pause, or average less than 64 KiB/s [default: 30].
    #[arg(hide_short_help = true, long, value_name = "SECONDS")]
    pub body_timeout: Option<NonZeroU32>,
    /// Seconds to keep an idle connection open [default: 75].
    #[arg(hide_short_help = true, long, value_name = "SECONDS")]
    pub idle_timeout: Option<NonZeroU32>,
    /// Seconds after which a client that reads none of its response is disconnected [default: 60].
    #[arg(hide_short_help = true, long, value_name = "SECONDS")]
    pub write_timeout: Option<NonZeroU32>,
}

/// MCP servers in the chat.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tools")]
pub struct ChatMcpArgs {
    /// Offer the model the tools of the MCP servers in this file, which has `mcpServers` as other
    /// MCP clients do; each call is asked for [without FILE: lanner/mcp.json in $XDG_CONFIG_HOME or
    /// ~/.config].
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub mcp: Option<Option<PathBuf>>,
    /// Make these calls without asking: a server's name, SERVER/TOOL, or `*` for all; may be
    /// repeated. In a pipe no other calls are made.
    #[arg(long, value_name = "SERVER[/TOOL]|*", requires = "mcp")]
    pub mcp_allow: Vec<String>,
    /// Seconds that a call may take [default: 60].
    #[arg(hide_short_help = true, long, value_name = "SECONDS", requires = "mcp")]
    pub mcp_timeout: Option<NonZeroU32>,
}

/// A running server, for the commands that talk to one.
#[derive(Debug, Args)]
pub struct RemoteArgs {
    /// Address of the server: localhost or an IP address [default: 127.0.0.1].
    #[arg(long, env = "LANNER_HOST", value_name = "ADDRESS")]
    pub host: Option<HostAddress>,
    /// Port of the server [default: 11436].
    #[arg(long, env = "LANNER_PORT")]
    pub port: Option<u16>,
    /// An API key of the server.
    #[arg(long, env = "LANNER_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

/// The config file always names a file.
fn given_file<'de, D: serde::Deserializer<'de>>(file: D) -> Result<Option<Option<PathBuf>>, D::Error> {
    PathBuf::deserialize(file).map(|path| Some(Some(path)))
}
