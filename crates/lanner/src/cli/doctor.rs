//! Arguments of `lanner doctor`.

use std::path::PathBuf;

use clap::Args;

use super::server::RemoteArgs;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print a JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Also ask the Hugging Face hub whether it can be reached.
    #[arg(long)]
    pub network: bool,
    /// Write a file for a bug report: these checks, the config file and variables, without keys,
    /// tokens and user names. It is shown before it is written.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub bug_report: Option<PathBuf>,
    /// Write the bug report without asking.
    #[arg(long, short, requires = "bug_report")]
    pub yes: bool,
    #[command(flatten)]
    pub server: RemoteArgs,
}
