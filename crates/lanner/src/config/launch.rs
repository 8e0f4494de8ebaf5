//! What `lanner launch` starts, and with which server.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{ModelConfig, dirs::base_folder, paths::agents_folder, server::ServerAddress};
use crate::{
    cli::{LaunchArgs, ModelArgs, ServerArgs},
    hub::HubConfig,
    launch::{Agent, Folders, LaunchError},
};

pub struct LaunchConfig {
    /// `None`: all agents are listed.
    pub agent: Option<&'static Agent>,
    pub args: Vec<OsString>,
    pub action: LaunchAction,
    pub server: ServerAddress,
    /// For a server that is started: its model, config file and name.
    pub model: Option<String>,
    pub config_file: Option<PathBuf>,
    pub served_name: Option<String>,
    /// The model that such a server would load.
    pub default: ModelConfig,
    /// Whether a model that is too small is no reason to stop.
    pub force: bool,
    pub folders: Folders,
    /// The log of a server that is started.
    pub log: PathBuf,
    /// Folders of programs.
    pub path: Vec<PathBuf>,
    /// Hosts that are reached without a proxy.
    pub no_proxy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchAction {
    Run,
    /// Show what would be set.
    Print,
    /// Undo changes of the agent's files.
    Restore,
}

impl LaunchConfig {
    /// # Errors
    /// There is no home folder.
    pub(super) fn new(
        args: LaunchArgs,
        file: ServerArgs,
        model: ModelArgs,
        hub: HubConfig,
        config_file: Option<&Path>,
    ) -> Result<LaunchConfig, LaunchError> {
        let folder =
            |variable: &str, fallback: &str| base_folder(variable, fallback).ok_or(LaunchError::NoHome);
        let folders = Folders {
            own: agents_folder().ok_or(LaunchError::NoHome)?,
            pi: folder("PI_CODING_AGENT_DIR", ".pi/agent")?,
            cline: folder("CLINE_DIR", ".cline")?,
        };
        let action = match (args.print, args.restore) {
            (true, _) => LaunchAction::Print,
            (_, true) => LaunchAction::Restore,
            _ => LaunchAction::Run,
        };
        let own_model = ModelArgs { model: args.model.clone(), ..ModelArgs::default() };
        Ok(LaunchConfig {
            agent: args.agent.as_deref().and_then(Agent::named),
            args: args.args,
            action,
            served_name: file.name.clone(),
            server: ServerAddress::new(args.server, file),
            model: args.model,
            config_file: config_file.map(Path::to_path_buf),
            default: ModelConfig::without_cache(own_model, model, hub),
            force: args.force,
            log: folders.own.join("server.log"),
            folders,
            path: env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect(),
            no_proxy: ["NO_PROXY", "no_proxy"].into_iter().find_map(|name| env::var(name).ok()),
        })
    }
}
