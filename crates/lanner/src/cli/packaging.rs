//! Arguments of the commands that packages call.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell that reads them.
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages, such as ~/.local/share/man/man1; it is made if it does not exist.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}
