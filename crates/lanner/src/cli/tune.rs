//! Arguments of `lanner tune`.

use clap::Args;

use super::{model::Device, values::Bytes};

#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Measure this model, and its drafters; takes what --model of other commands takes, and may be
    /// given several times [default: that of the config file, else the built-in model].
    #[arg(long = "model", short, env = "LANNER_MODEL", value_name = "MODEL")]
    pub models: Vec<String>,
    /// Also measure every complete model in the hub's cache.
    #[arg(long)]
    pub all: bool,
    /// Take seconds instead of minutes: smaller random models, one round, one text for drafters.
    #[arg(long)]
    pub quick: bool,
    /// Device to compute on [default: the GPU if there is one].
    #[arg(long, env = "LANNER_DEVICE")]
    pub device: Option<Device>,
    /// Also show what fits under this limit, in bytes or as 500M or 4G [default: that of the config
    /// file].
    #[arg(long, env = "LANNER_MEMORY_LIMIT", value_name = "BYTES|off")]
    pub memory_limit: Option<Bytes>,
    /// Print a JSON object instead of text; docs/tune.md describes it.
    #[arg(long)]
    pub json: bool,
    /// Merge the settings that follow into the config file, and keep a copy of the file. Keys that
    /// are set there stay as they are.
    #[arg(long)]
    pub write: bool,
    /// With --write: also replace keys that are set already.
    #[arg(long, requires = "write")]
    pub replace: bool,
}
