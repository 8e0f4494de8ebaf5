//! `lanner doctor`: what is installed, found and missing on this machine.

use std::{
    fs,
    io::{BufRead, IsTerminal, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use serde_json::json;
use ureq::Agent;

use super::{CommandError, remote};
use crate::{
    config::DoctorConfig,
    doctor::{self, BugReport, Check, Redaction, Scope, Status},
    host::HostInfo,
    hub::HubConfig,
    terminal::{say, table},
};

/// For a server on this machine.
const SERVER: Duration = Duration::from_secs(2);
const HUB: Duration = Duration::from_secs(10);

/// Fails if one of the checks does.
///
/// # Errors
/// stdout is closed, or the bug report cannot be written.
pub fn doctor(config: &DoctorConfig) -> Result<ExitCode, CommandError> {
    let server = remote::call_within(&config.server, "/version", None, SERVER).ok();
    let scope = Scope {
        hub: &config.hub,
        config_file: config.config_file.as_ref(),
        config_fault: config.config_fault.as_deref(),
        prefixes: config.prefixes.as_ref(),
        kernels: config.kernels.as_ref(),
        path: &config.path,
        address: config.server.address,
        server: server.and_then(|answer| Some(answer["version"].as_str()?.to_owned())),
    };
    let mut checks = doctor::checks(&HostInfo::here(), &scope);
    if config.network {
        checks.push(doctor::hub(&config.hub, ask_hub));
    }
    let worst = checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok);
    match &config.bug_report {
        Some(file) => bug_report(config, &checks, file)?,
        None if config.json => {
            let report = json!({ "version": env!("CARGO_PKG_VERSION"), "status": worst, "checks": checks });
            writeln!(std::io::stdout(), "{report:#}")?;
        }
        None => write!(std::io::stdout(), "{}", text(&checks))?,
    }
    Ok(if worst == Status::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text(checks: &[Check]) -> String {
    let rows = checks.iter().flat_map(|check| {
        let found = [check.status.name().to_owned(), check.name.to_owned(), check.found.clone()];
        let hint = check.hint.as_ref().map(|hint| [String::new(), String::new(), format!("hint: {hint}")]);
        [Some(found), hint].into_iter().flatten()
    });
    table(&rows.collect::<Vec<_>>())
}

/// The status of the hub's front door, which needs no token.
fn ask_hub(hub: &HubConfig) -> Result<u16, String> {
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .proxy(hub.proxy.clone())
        .timeout_global(Some(HUB))
        .build()
        .into();
    let answer = agent.get(format!("{}/api/models?limit=1", hub.endpoint)).call();
    answer.map(|answer| answer.status().as_u16()).map_err(|error| error.to_string())
}

fn bug_report(config: &DoctorConfig, checks: &[Check], file: &Path) -> Result<(), CommandError> {
    let settings = config.config_file.as_ref().and_then(|path| fs::read_to_string(path).ok());
    let redaction =
        Redaction { home: config.home.as_deref(), user: config.user.as_deref(), secrets: &config.secrets };
    let text = BugReport { checks, config: settings.as_deref(), env: &config.env }.text(&redaction);
    write!(std::io::stdout(), "{text}")?;
    if !config.yes {
        confirm(file)?;
    }
    fs::write(file, text).map_err(|error| CommandError::Write { path: file.into(), error })?;
    say(format_args!("lanner: wrote {}", file.display()));
    Ok(())
}

fn confirm(file: &Path) -> Result<(), CommandError> {
    let (stdin, shown) = (std::io::stdin(), file.display());
    if !stdin.is_terminal() {
        return Err(CommandError::NotWritten(format!(
            "{shown} was not written: stdin is not a terminal that could confirm it\nhint: add --yes"
        )));
    }
    write!(std::io::stderr(), "Write this to {shown}? [y/N] ")?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CommandError::NotWritten(format!("{shown} was not written"))),
    }
}
