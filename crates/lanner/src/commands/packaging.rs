//! `lanner completions` and `lanner man`: what is installed beside the program.

use std::{fs, io::Write, path::Path};

use clap::CommandFactory;
use clap_complete::Shell;

use super::CommandError;
use crate::cli::Cli;

/// Prints the completions of a shell.
///
/// # Errors
/// stdout is closed.
pub fn completions(shell: Shell) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lanner", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

/// Writes a page for each command: `lanner.1`, `lanner-run.1` and so on.
///
/// # Errors
/// The folder or a file in it cannot be written.
pub fn man(folder: &Path) -> Result<(), CommandError> {
    let write = || {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(Cli::command(), folder)
    };
    write().map_err(|error| CommandError::Write { path: folder.into(), error })
}
