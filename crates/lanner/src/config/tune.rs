//! Settings of `lanner tune`.

use std::path::PathBuf;

use super::{ConfigFile, ModelConfig, error::ConfigError, paths};
use crate::{
    cli::{ModelArgs, TuneArgs},
    hub::HubConfig,
};

pub struct TuneConfig {
    /// Models to measure, as the user named them; `None`: the built-in model.
    pub models: Vec<Option<String>>,
    /// Whether the command line names them: a model of the config file is there already.
    pub is_named: bool,
    /// Also measure all models in the cache.
    pub all: bool,
    /// Take seconds instead of minutes.
    pub quick: bool,
    pub json: bool,
    /// `None`: nothing is written.
    pub write: Option<WriteConfig>,
}

/// Where settings are merged.
pub struct WriteConfig {
    /// It need not exist.
    pub file: PathBuf,
    pub replace: bool,
}

/// With how models run.
pub(super) fn resolve(
    args: TuneArgs,
    file: ConfigFile,
    config: Option<PathBuf>,
    hub: HubConfig,
) -> Result<(ModelConfig, TuneConfig), ConfigError> {
    let TuneArgs { models, all, quick, device, memory_limit, json, write, replace } = args;
    let write = match write {
        true => {
            let file = config.or_else(paths::config_file).ok_or(ConfigError::NoConfigFolder)?;
            Some(WriteConfig { file, replace })
        }
        false => None,
    };
    let own = ModelArgs { device, memory_limit, ..ModelArgs::default() };
    let model = ModelConfig::without_cache(own, file.model, hub);
    let is_named = !models.is_empty();
    let models = if is_named { models.into_iter().map(Some).collect() } else { vec![model.model.clone()] };
    Ok((model, TuneConfig { models, is_named, all, quick, json, write }))
}
