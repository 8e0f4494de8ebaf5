//! `lanner rm`: removes a model from the cache after confirmation.

use std::io::{BufRead, IsTerminal, Write};

use super::CommandError;
use crate::{
    builtin::BUILTIN,
    config::RmConfig,
    hub::{HubConfig, HubError, LastUsed, megabytes, plan_removal},
    source,
    terminal::say,
};

/// # Errors
/// The model is not in the cache, is being downloaded, or the user declined.
pub fn rm(hub: &HubConfig, config: &RmConfig) -> Result<(), CommandError> {
    let model = &config.model;
    if model == BUILTIN.name {
        return Err(CommandError::BuiltIn(BUILTIN.name));
    }
    let repo = source::repo(model).ok_or_else(|| HubError::BadName(model.clone()))?;
    if repo.part.is_some() {
        return Err(HubError::PartOnly(repo.id()).into());
    }
    let removal = plan_removal(&hub.cache()?, &repo)?;
    if !config.yes {
        confirm(&repo.to_string(), removal.size)?;
    }
    removal.carry_out(&LastUsed(hub.uses.clone()))?;
    say(format_args!("lanner: removed {repo}, {} freed", megabytes(removal.size)));
    Ok(())
}

fn confirm(model: &str, size: u64) -> Result<(), CommandError> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(CommandError::NoConfirmation(model.into()));
    }
    write!(std::io::stderr(), "Remove {model} ({})? [y/N] ", megabytes(size))?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CommandError::NotRemoved(model.into())),
    }
}
