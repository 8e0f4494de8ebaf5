//! Arguments of `lanner launch`.

use std::ffi::OsString;

use clap::{Args, builder::PossibleValuesParser};

use super::server::RemoteArgs;
use crate::launch::AGENTS;

#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// The agent; without one, all are listed.
    #[arg(value_parser = PossibleValuesParser::new(AGENTS.iter().map(|agent| agent.name)))]
    pub agent: Option<String>,
    /// Arguments of the agent itself.
    #[arg(last = true, requires = "agent")]
    pub args: Vec<OsString>,
    /// The model; takes what --model of `lanner serve` takes. A running server loads it beside its
    /// own [default: that of the server].
    #[arg(long, short, env = "LANNER_MODEL", value_name = "MODEL")]
    pub model: Option<String>,
    /// Start the agent even if the model is too small for it.
    #[arg(long)]
    pub force: bool,
    /// Print what would be set, as a script for sh, and change and start nothing.
    #[arg(long, requires = "agent")]
    pub print: bool,
    /// Undo what was changed in the agent's own files, and start nothing.
    #[arg(long, requires = "agent", conflicts_with = "print")]
    pub restore: bool,
    #[command(flatten)]
    pub server: RemoteArgs,
}
