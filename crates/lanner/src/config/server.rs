//! The server's address, access control and limits.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    time::Duration,
};

use crate::cli::ServerArgs;

/// More than the default batch and queue, less than the usual limit on open files.
const MAX_CONNECTIONS: u32 = 512;

pub struct ServeConfig {
    pub address: SocketAddr,
    pub api_key: Option<String>,
    pub allowed_hosts: Vec<String>,
    /// In bytes.
    pub body_limit: usize,
    /// Replaces the model's own name in responses.
    pub name: Option<String>,
    /// Whether to serve the routes that load and pull models and manage the cache.
    pub admin: bool,
    pub max_connections: u32,
    pub timeouts: Timeouts,
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

impl ServeConfig {
    pub fn new(args: ServerArgs, file: ServerArgs) -> ServeConfig {
        let host = args.host.or(file.host).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let port = args.port.or(file.port).unwrap_or(11436);
        let defaults = Timeouts::default();
        let seconds = |flag: Option<NonZeroU32>, file: Option<NonZeroU32>, default| {
            flag.or(file).map_or(default, |seconds| Duration::from_secs(seconds.get().into()))
        };
        ServeConfig {
            address: SocketAddr::new(host, port),
            api_key: args.api_key.or(file.api_key).filter(|key| !key.is_empty()),
            allowed_hosts: [args.allow_host, file.allow_host].concat(),
            body_limit: args.body_limit.or(file.body_limit).unwrap_or(16) << 20,
            name: args.name.or(file.name),
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
        }
    }
}
