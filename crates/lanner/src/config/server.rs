//! The server's address, access control and limits.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use super::{api_keys::ApiKeys, error::ConfigError, mcp::McpConfig, store::StoreConfig};
use crate::{
    cli::{CorsOrigin, HostAddress, RemoteArgs, ServerArgs},
    image_url::AllowedHost,
    keep_alive::KeepAlive,
};

/// More than the default batch and queue, less than the usual limit on open files.
pub const MAX_CONNECTIONS: u32 = 512;
const DEFAULT_PORT: u16 = 11436;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// In MiB.
const DEFAULT_BODY_LIMIT: usize = 16;

pub struct ServeConfig {
    pub address: SocketAddr,
    pub api_keys: ApiKeys,
    /// The file that some of `api_keys` come from.
    pub api_keys_file: Option<PathBuf>,
    /// Whether clients with different keys share cached prefixes.
    pub share_prefixes: bool,
    pub allowed_hosts: Vec<String>,
    /// Web pages that may use the server from other sites.
    pub cors_origins: Vec<CorsOrigin>,
    /// Hosts from which images at URLs are fetched.
    pub allow_image_urls: Vec<AllowedHost>,
    /// In bytes.
    pub body_limit: usize,
    pub registry: RegistryConfig,
    /// Whether to serve the routes that load and pull models and manage the cache.
    pub admin: bool,
    pub max_connections: u32,
    pub timeouts: Timeouts,
    /// `None`: nothing is stored.
    pub store: Option<StoreConfig>,
    /// MCP servers whose tools requests may use; `None`: none.
    pub mcp: Option<McpConfig>,
}

/// Which models are loaded, and for how long.
#[derive(Clone, Debug, Default)]
pub struct RegistryConfig {
    /// Replaces the default model's own name in responses.
    pub name: Option<String>,
    /// To models as `--model` names them.
    pub aliases: BTreeMap<String, String>,
    /// `None`: as many as fit into memory.
    pub max_loaded: Option<usize>,
    pub keep_alive: KeepAlive,
    /// Whether the default model stays loaded.
    pub pin: bool,
    /// Whether requests load models that they name.
    pub load_by_name: bool,
}

impl RegistryConfig {
    fn new(args: &ServerArgs, file: &ServerArgs) -> RegistryConfig {
        let aliases = file.alias.iter().chain(&args.alias);
        RegistryConfig {
            name: args.name.clone().or_else(|| file.name.clone()),
            aliases: aliases.map(|alias| (alias.name.clone(), alias.model.clone())).collect(),
            max_loaded: args.max_loaded_models.or(file.max_loaded_models).map(NonZeroUsize::get),
            keep_alive: args.keep_alive.or(file.keep_alive).unwrap_or_default(),
            pin: !args.no_pin && !file.no_pin,
            load_by_name: !args.no_admin && !file.no_admin,
        }
    }
}

/// Limits on how long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// To send a request head.
    pub head: Duration,
    /// Between two reads of a request body.
    pub body: Duration,
    /// Between two requests on a connection.
    pub idle: Duration,
    /// To read some of the response.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let [head, body, idle, write] = [15, 30, 75, 60].map(Duration::from_secs);
        Timeouts { head, body, idle, write }
    }
}

impl Default for ServeConfig {
    /// The configuration without flags and config file.
    fn default() -> ServeConfig {
        ServeConfig {
            address: SocketAddr::new(LOCALHOST, DEFAULT_PORT),
            api_keys: ApiKeys::default(),
            api_keys_file: None,
            share_prefixes: false,
            allowed_hosts: vec![],
            cors_origins: vec![],
            allow_image_urls: vec![],
            body_limit: DEFAULT_BODY_LIMIT << 20,
            registry: RegistryConfig::new(&ServerArgs::default(), &ServerArgs::default()),
            admin: true,
            max_connections: MAX_CONNECTIONS,
            timeouts: Timeouts::default(),
            store: None,
            mcp: None,
        }
    }
}

impl ServeConfig {
    /// A configuration without a store and without MCP servers.
    ///
    /// # Errors
    /// The API keys cannot be used.
    pub fn new(args: ServerArgs, file: ServerArgs) -> Result<ServeConfig, ConfigError> {
        let registry = RegistryConfig::new(&args, &file);
        let host = args.host.or(file.host).map_or(LOCALHOST, |HostAddress(address)| address);
        let port = args.port.or(file.port).unwrap_or(DEFAULT_PORT);
        let defaults = Timeouts::default();
        let seconds = |flag: Option<NonZeroU32>, file: Option<NonZeroU32>, default| {
            flag.or(file).map_or(default, |seconds| Duration::from_secs(seconds.get().into()))
        };
        let given = if args.api_key.is_empty() { file.api_key } else { args.api_key };
        let api_keys_file = args.api_keys_file.or(file.api_keys_file);
        Ok(ServeConfig {
            address: SocketAddr::new(host, port),
            api_keys: ApiKeys::new(&given, api_keys_file.as_deref())?,
            api_keys_file,
            share_prefixes: args.share_prefixes || file.share_prefixes,
            cors_origins: if args.cors_origin.is_empty() { file.cors_origin } else { args.cors_origin },
            allowed_hosts: [args.allow_host, file.allow_host].concat(),
            allow_image_urls: [args.allow_image_urls, file.allow_image_urls].concat(),
            body_limit: args.body_limit.or(file.body_limit).unwrap_or(DEFAULT_BODY_LIMIT) << 20,
            registry,
            admin: !args.no_admin && !file.no_admin,
            max_connections: args
                .max_connections
                .or(file.max_connections)
                .map_or(MAX_CONNECTIONS, |most| most.get().into()),
            timeouts: Timeouts {
                head: seconds(args.header_timeout, file.header_timeout, defaults.head),
                body: seconds(args.body_timeout, file.body_timeout, defaults.body),
                idle: seconds(args.idle_timeout, file.idle_timeout, defaults.idle),
                write: seconds(args.write_timeout, file.write_timeout, defaults.write),
            },
            store: None,
            mcp: None,
        })
    }
}

/// A running server, and a key to it.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    pub address: SocketAddr,
    pub api_key: Option<String>,
}

impl ServerAddress {
    pub fn new(args: RemoteArgs, file: ServerArgs) -> ServerAddress {
        let HostAddress(host) = args.host.or(file.host).unwrap_or(HostAddress(LOCALHOST));
        // A server on all addresses also answers on this one.
        let host = if host.is_unspecified() { LOCALHOST } else { host };
        let port = args.port.or(file.port).unwrap_or(DEFAULT_PORT);
        let api_key = args.api_key.or_else(|| file.api_key.into_iter().next());
        ServerAddress { address: SocketAddr::new(host, port), api_key: api_key.filter(|key| !key.is_empty()) }
    }

    /// Without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
