//! Where the program keeps data, for `lanner paths`.

use std::path::PathBuf;

use super::{
    dirs::{kernel_cache_folder, user_folder},
    mcp::mcp_file,
    model::disk_cache_folder,
    service::service_folder,
    store::store_file,
};
use crate::{
    cli::{CacheArgs, PathsArgs, StoreArgs},
    hub::HubConfig,
};

pub struct PathsConfig {
    pub paths: Vec<DataPath>,
    pub json: bool,
}

/// A file or folder of the program; it need not exist.
pub struct DataPath {
    pub name: &'static str,
    /// `None`: the system has no home folder, and no variable names another.
    pub path: Option<PathBuf>,
    pub description: &'static str,
}

impl PathsConfig {
    pub fn new(
        args: PathsArgs,
        config: Option<PathBuf>,
        cache: CacheArgs,
        store: StoreArgs,
        hub: &HubConfig,
    ) -> PathsConfig {
        let path = |name, path, description| DataPath { name, path, description };
        let config = config.or_else(config_file);
        let paths = vec![
            path("config", config, "config file (--config, LANNER_CONFIG)"),
            path(
                "models",
                hub.cache.clone(),
                "downloaded models, shared with huggingface_hub (HF_HUB_CACHE, HF_HOME)",
            ),
            path(
                "prefixes",
                args.cache_dir.or(cache.cache_dir).or_else(disk_cache_folder),
                "prefix cache on disk (--cache-dir, LANNER_CACHE_DIR); lanner cache clear empties it",
            ),
            path("kernels", kernel_cache_folder(), "compiled kernels for GPUs"),
            path(
                "store",
                args.store.or(store.store).or_else(store_file),
                "conversations and figures of requests (--store, LANNER_STORE); lanner history, lanner stats",
            ),
            path("mcp", mcp_file(), "MCP servers of --mcp without a file"),
            path("history", history_file(), "what was typed in lanner chat"),
            path("agents", agents_folder(), "files of lanner launch for coding agents, and its server's log"),
            path(
                "service",
                service_folder(),
                "log and state of the server that lanner start keeps in the background",
            ),
            path("uses", hub.uses.clone(), "when each model was last used"),
        ];
        PathsConfig { paths, json: args.json }
    }
}

/// The config file of the user; it need not exist.
pub(super) fn config_file() -> Option<PathBuf> {
    user_folder("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("config.toml"))
}

/// Files of ours for coding agents.
pub(super) fn agents_folder() -> Option<PathBuf> {
    user_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("agents"))
}

/// Lines typed in `lanner chat`.
pub(super) fn history_file() -> Option<PathBuf> {
    user_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("chat-history"))
}
