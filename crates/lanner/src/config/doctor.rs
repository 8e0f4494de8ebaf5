//! What `lanner doctor` looks at. Faults of the config file are findings here.

use std::{env, path::PathBuf};

use super::{
    ConfigFile, dirs::kernel_cache_folder, error::ConfigError, hub, model::disk_cache_folder, paths,
    server::ServerAddress,
};
use crate::{cli::DoctorArgs, hub::HubConfig};

/// Variables that change what Lanner, the hub's tools or drivers do.
const VARIABLES: [&str; 9] =
    ["LANNER_", "HF_", "CUDA_", "NVIDIA_", "MLX_", "LD_LIBRARY_PATH", "DYLD_", "XDG_", "NO_COLOR"];
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];

pub struct DoctorConfig {
    pub json: bool,
    pub network: bool,
    pub bug_report: Option<PathBuf>,
    pub yes: bool,
    pub server: ServerAddress,
    /// `Err`: what is wrong with its variables.
    pub hub: Result<HubConfig, String>,
    pub config_file: Option<PathBuf>,
    /// What is wrong with the config file.
    pub config_fault: Option<String>,
    pub prefixes: Option<PathBuf>,
    pub kernels: Option<PathBuf>,
    /// Folders of programs.
    pub path: Vec<PathBuf>,
    pub env: Vec<(String, String)>,
    /// For the bug report, which names neither.
    pub home: Option<String>,
    pub user: Option<String>,
    /// Keys and tokens, which the bug report must not have.
    pub secrets: Vec<String>,
}

impl DoctorConfig {
    pub(super) fn new(args: DoctorArgs, config: Option<PathBuf>) -> DoctorConfig {
        let (file, config_fault) = match ConfigFile::read(config.as_deref()) {
            Ok(file) => (file, None),
            Err(error) => (ConfigFile::default(), Some(fault(&error))),
        };
        let hub = hub::resolve().map_err(|error| error.to_string());
        let text = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
        let token = hub.as_ref().ok().and_then(|hub| hub.token.clone());
        let secrets = args.server.api_key.iter().chain(&file.server.api_key).cloned().chain(token);
        DoctorConfig {
            json: args.json,
            network: args.network,
            bug_report: args.bug_report,
            yes: args.yes,
            secrets: secrets.filter(|secret| !secret.is_empty()).collect(),
            server: ServerAddress::new(args.server, file.server),
            hub,
            config_file: config.or_else(|| paths::config_file().filter(|path| path.exists())),
            config_fault,
            prefixes: text("LANNER_CACHE_DIR")
                .map(PathBuf::from)
                .or(file.cache.cache_dir)
                .or_else(disk_cache_folder),
            kernels: kernel_cache_folder(),
            path: env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect(),
            env: env::vars_os()
                .map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()))
                .filter(|[name, _]| is_relevant(name))
                .map(|[name, value]| (name, value))
                .collect(),
            home: text("HOME"),
            user: text("USER").or_else(|| text("LOGNAME")),
        }
    }
}

fn is_relevant(name: &str) -> bool {
    VARIABLES.iter().any(|start| name.starts_with(start))
        || PROXIES.contains(&name.to_ascii_uppercase().as_str())
}

/// Without the lines of the file, which may hold keys.
fn fault(error: &ConfigError) -> String {
    match error {
        ConfigError::Parse { path, error } => {
            format!("the config file {} is not valid: {}", path.display(), error.message())
        }
        error => error.to_string(),
    }
}
