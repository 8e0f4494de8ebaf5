//! `lanner status`: whether the server in the background runs, and what it has loaded.

use std::{
    io::Write,
    process::{Command, ExitCode},
    time::{Duration, UNIX_EPOCH},
};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{CommandError, ServerHealth, ServiceProcess, health, log, process, reachable, url};
use crate::{
    commands::{models::ago, remote},
    config::{ServerAddress, StatusConfig},
    hub::megabytes,
    server::unix_seconds,
    service::ServiceRecord,
    terminal::table,
};

const MODELS: Duration = Duration::from_secs(10);
/// Exit status if no server runs, as of other programs that tell the state of services.
const STOPPED: u8 = 3;

/// Known state of the server.
struct ServiceStatus {
    record: ServiceRecord,
    process: ServiceProcess,
    state: ServiceState,
    address: std::net::SocketAddr,
    /// In seconds since the Unix epoch.
    since: u64,
    /// Resident.
    memory_bytes: Option<u64>,
    /// Or why they are not known.
    models: Result<Vec<Value>, String>,
}

enum ServiceState {
    Running,
    /// It is not ready yet.
    Starting,
    /// Its process runs, but does not answer, or answers with a problem.
    Unresponsive(String),
    /// Without `lanner stop`.
    Ended,
}

impl ServiceState {
    fn name(&self) -> &'static str {
        match self {
            ServiceState::Running => "running",
            ServiceState::Starting => "starting",
            ServiceState::Unresponsive(_) => "unresponsive",
            ServiceState::Ended => "ended",
        }
    }
}

/// The exit status is 0 if the server is ready, 1 if it is not ready or does not answer, 3 if none
/// runs.
///
/// # Errors
/// Its manager does not answer, or stdout is closed.
pub fn status(config: &StatusConfig) -> Result<ExitCode, CommandError> {
    let mut stdout = std::io::stdout();
    let Some(record) = ServiceRecord::read(&config.folders.record())? else {
        match config.json {
            true => writeln!(stdout, "{:#}", json!({ "state": "stopped" }))?,
            false => writeln!(stdout, "no server of lanner start runs{}", elsewhere(&config.default))?,
        }
        return Ok(ExitCode::from(STOPPED));
    };
    let status = ServiceStatus::read(record, config)?;
    match config.json {
        true => writeln!(stdout, "{:#}", status.json(config))?,
        false => write!(stdout, "{}", status.text(config))?,
    }
    Ok(match status.state {
        ServiceState::Running => ExitCode::SUCCESS,
        ServiceState::Starting | ServiceState::Unresponsive(_) => ExitCode::FAILURE,
        ServiceState::Ended => ExitCode::from(STOPPED),
    })
}

/// A server that was started otherwise.
fn elsewhere(default: &ServerAddress) -> String {
    match health(default.address) {
        ServerHealth::None => String::new(),
        _ => format!("; one that was started otherwise answers at {}", default.url()),
    }
}

impl ServiceStatus {
    fn read(record: ServiceRecord, config: &StatusConfig) -> Result<ServiceStatus, CommandError> {
        let folders = &config.folders;
        let process = process(&record, folders)?;
        let address = reachable(&record, folders);
        // Its log may have been moved or emptied since.
        let is_ready = record.is_ready || log::address(&folders.log()).is_some();
        let mut since = record.started;
        let state = match (process.is_running, is_ready) {
            (false, _) => ServiceState::Ended,
            (true, false) => ServiceState::Starting,
            (true, true) => match health(address) {
                ServerHealth::Good(health) => {
                    // It may have been restarted.
                    let uptime = health["uptime_s"].as_u64().unwrap_or(0);
                    since = unix_seconds().saturating_sub(uptime);
                    ServiceState::Running
                }
                ServerHealth::Bad(reason) => ServiceState::Unresponsive(reason),
                ServerHealth::None => ServiceState::Unresponsive("it does not answer".into()),
            },
        };
        let models = match state {
            ServiceState::Running => {
                let server = ServerAddress { address, api_key: config.api_key.clone() };
                remote::models_within(&server, MODELS).map_err(|error| error.to_string())
            }
            _ => Ok(vec![]),
        };
        let memory_bytes = process.pid.filter(|_| process.is_running).and_then(resident_bytes);
        Ok(ServiceStatus { record, process, state, address, since, memory_bytes, models })
    }

    fn pid(&self) -> Option<u32> {
        self.process.pid.or(self.record.pid)
    }

    fn json(&self, config: &StatusConfig) -> Value {
        let problem = match &self.state {
            ServiceState::Unresponsive(problem) => Some(problem),
            _ => None,
        };
        json!({
            "state": self.state.name(),
            "problem": problem,
            "url": url(self.address),
            "pid": self.pid(),
            "since": time(self.since),
            "manager": self.record.manager,
            "at_login": self.record.at_login,
            "restarts": self.process.restarts,
            "memory_bytes": self.memory_bytes,
            "models": self.models.as_ref().ok(),
            "program": self.record.program.path,
            "program_change": self.record.program.change(),
            "arguments": self.record.arguments,
            "log": config.folders.log(),
        })
    }

    fn text(&self, config: &StatusConfig) -> String {
        let pid = self.pid().map_or("-".into(), |pid| pid.to_string());
        let state = match &self.state {
            ServiceState::Running | ServiceState::Starting => self.state.name().to_owned(),
            ServiceState::Unresponsive(problem) => format!("unresponsive: {problem}"),
            ServiceState::Ended => {
                "ended without lanner stop: it crashed or was killed; lanner start starts \
                                    another, lanner logs shows its log"
                    .into()
            }
        };
        let since = format!("{} ({})", time(self.since), ago(UNIX_EPOCH + Duration::from_secs(self.since)));
        let restarts = self.process.restarts.filter(|restarts| *restarts > 0);
        let restarts = restarts.map_or(String::new(), |restarts| format!(", {restarts} restarts"));
        let login = if self.record.at_login { ", started at each login" } else { "" };
        let mut rows = vec![
            ("state", state),
            ("address", url(self.address)),
            ("process", pid),
            ("since", since),
            ("manager", format!("{}{login}{restarts}", self.record.manager.name())),
        ];
        rows.extend(self.memory_bytes.map(|bytes| ("memory", megabytes(bytes))));
        rows.push(("log", config.folders.log().display().to_string()));
        rows.extend(self.record.program.change().map(|change| ("program", change)));
        let rows: Vec<[String; 2]> = rows.into_iter().map(|(name, value)| [name.to_owned(), value]).collect();
        let models = match &self.models {
            Ok(models) if models.is_empty() => String::new(),
            Ok(models) => {
                let header = vec![remote::HEADER.map(str::to_owned)];
                format!("\n{}", table(&[header, models.iter().map(remote::row).collect()].concat()))
            }
            Err(problem) => format!("\nthe models are not known: {problem}\n"),
        };
        table(&rows) + &models
    }
}

fn time(seconds: u64) -> String {
    Timestamp::from_second(seconds as i64).map_or("-".into(), |time| time.to_string())
}

/// Resident memory of a process, where the system reports it.
fn resident_bytes(pid: u32) -> Option<u64> {
    let output = Command::new("ps").args(["-o", "rss=", "-p", &pid.to_string()]).output().ok()?;
    let kilobytes: u64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
