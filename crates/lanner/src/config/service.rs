//! The server in the background: what it runs with, and where its files lie.

use std::{
    collections::BTreeMap,
    env,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use super::{
    dirs::{base_folder, user_folder},
    server::ServerAddress,
};
use crate::{
    cli::{LogsArgs, RemoteArgs, ServerArgs, ServiceArgs, StatusArgs, StopArgs, serve_flags},
    service::{Manager, ServiceError, ServiceFolders},
};

/// Variables that a server acts on, by their start.
const PREFIXES: [&str; 5] = ["LANNER_", "HF_", "MLX_", "CUDA_", "OMP_"];
/// Others.
const VARIABLES: [&str; 16] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "NO_COLOR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
];

pub struct StartConfig {
    /// `None`: what this machine has.
    pub manager: Option<Manager>,
    pub at_login: bool,
    pub wait: Duration,
    /// Where the server will listen.
    pub address: SocketAddr,
    /// Arguments of the server.
    pub arguments: Vec<String>,
    /// Variables for a server whose manager does not hand on this program's; they may be secret.
    pub environment: BTreeMap<String, String>,
    pub folders: ServiceFolders,
}

pub enum StopConfig {
    /// With the model to unload.
    Model(ServerAddress, String),
    /// The server in the background, if it is at this host and port.
    Service { folders: ServiceFolders, host: Option<IpAddr>, port: Option<u16> },
}

pub struct StatusConfig {
    pub folders: ServiceFolders,
    pub json: bool,
    pub api_key: Option<String>,
    /// Where a server is looked for that was started otherwise.
    pub default: ServerAddress,
}

pub struct LogsConfig {
    pub folders: ServiceFolders,
    pub follow: bool,
    pub lines: usize,
}

impl StartConfig {
    /// # Errors
    /// There is no home folder, an argument is not UTF-8, or there are several API keys.
    pub(super) fn new(
        args: &ServiceArgs,
        address: SocketAddr,
        api_keys: &[String],
    ) -> Result<StartConfig, ServiceError> {
        let utf8 = |flag: std::ffi::OsString| {
            flag.into_string().map_err(|flag| ServiceError::NotUtf8(flag.to_string_lossy().into_owned()))
        };
        let flags = serve_flags(env::args_os()).into_iter().map(utf8).collect::<Result<Vec<_>, _>>()?;
        let mut environment = environment();
        match api_keys {
            [] => {}
            // Not an argument, as all users see those.
            [key] => _ = environment.insert("LANNER_API_KEY".into(), key.clone()),
            _ => return Err(ServiceError::SeveralKeys),
        }
        Ok(StartConfig {
            manager: args.manager.map(Manager::from),
            at_login: args.at_login,
            wait: Duration::from_secs(args.wait.into()),
            address,
            arguments: std::iter::once("serve".to_owned()).chain(flags).collect(),
            environment,
            folders: folders()?,
        })
    }
}

impl StopConfig {
    /// # Errors
    /// There is no home folder.
    pub(super) fn new(args: StopArgs, file: ServerArgs) -> Result<StopConfig, ServiceError> {
        Ok(match args.model {
            Some(model) => StopConfig::Model(ServerAddress::new(args.server, file), model),
            None => StopConfig::Service {
                folders: folders()?,
                host: args.server.host.map(|host| host.0),
                port: args.server.port,
            },
        })
    }
}

impl StatusConfig {
    /// # Errors
    /// There is no home folder.
    pub(super) fn new(args: StatusArgs, file: ServerArgs) -> Result<StatusConfig, ServiceError> {
        let remote = RemoteArgs { host: None, port: None, api_key: args.api_key };
        let default = ServerAddress::new(remote, file);
        Ok(StatusConfig { folders: folders()?, json: args.json, api_key: default.api_key.clone(), default })
    }
}

impl LogsConfig {
    /// # Errors
    /// There is no home folder.
    pub(super) fn new(args: &LogsArgs) -> Result<LogsConfig, ServiceError> {
        Ok(LogsConfig { folders: folders()?, follow: args.follow, lines: args.lines })
    }
}

fn folders() -> Result<ServiceFolders, ServiceError> {
    Ok(ServiceFolders {
        own: service_folder().ok_or(ServiceError::NoHome)?,
        units: base_folder("XDG_CONFIG_HOME", ".config").ok_or(ServiceError::NoHome)?.join("systemd/user"),
        agents: base_folder("HOME", "").ok_or(ServiceError::NoHome)?.join("Library/LaunchAgents"),
    })
}

/// Files of the server in the background.
pub(super) fn service_folder() -> Option<PathBuf> {
    user_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("service"))
}

/// The variables of this program that a server acts on.
fn environment() -> BTreeMap<String, String> {
    let is_meant =
        |name: &str| VARIABLES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| is_meant(name))
        .collect()
}
