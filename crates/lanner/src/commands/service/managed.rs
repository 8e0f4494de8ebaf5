//! Servers that systemd or launchd keep running, through `systemctl` and `launchctl`.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{ServiceProcess, file_error, write_private};
use crate::service::{Manager, ServiceDefinition, ServiceError, ServiceFolders, launchd, systemd};

/// How long launchd may take to end a server.
const STOP: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(100);

/// Default manager of servers on this machine.
pub(super) fn default_manager() -> Manager {
    match cfg!(target_os = "macos") {
        true => Manager::Launchd,
        false if run("systemctl", &["--user", "show-environment"]).is_ok() => Manager::Systemd,
        false => Manager::Plain,
    }
}

/// Runs a program to its end; returns what it prints.
fn run(program: &str, arguments: &[&str]) -> Result<String, ServiceError> {
    let failed = |message: String| {
        let command = format!("{program} {}", arguments.join(" "));
        ServiceError::Command { command, message }
    };
    let output = Command::new(program).args(arguments).output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(failed(if said.is_empty() { output.status.to_string() } else { said }))
        }
    }
}

fn systemctl(arguments: &[&str]) -> Result<String, ServiceError> {
    run("systemctl", &[&["--user"][..], arguments].concat())
}

/// Fails if a file is there that is not ours.
fn check_own(path: &Path, mark: &str) -> Result<(), ServiceError> {
    match fs::read_to_string(path) {
        Ok(text) if !text.contains(mark) => Err(ServiceError::ForeignDefinition(path.into())),
        _ => Ok(()),
    }
}

/// Writes the unit and starts it.
pub(super) fn start_systemd(
    service: &ServiceDefinition,
    folders: &ServiceFolders,
    at_login: bool,
) -> Result<(), ServiceError> {
    let unit = folders.unit();
    check_own(&unit, systemd::MARK)?;
    write_private(&service.environment_file, &systemd::environment(&service.environment))?;
    write_private(&unit, &systemd::unit(service))?;
    systemctl(&["daemon-reload"])?;
    // Fails if it has not failed before.
    let _ = systemctl(&["reset-failed", systemd::UNIT]);
    systemctl(&[if at_login { "enable" } else { "disable" }, systemd::UNIT])?;
    systemctl(&["start", systemd::UNIT])?;
    Ok(())
}

pub(super) fn stop_systemd() -> Result<(), ServiceError> {
    systemctl(&["disable", systemd::UNIT])?;
    systemctl(&["stop", systemd::UNIT])?;
    Ok(())
}

pub(super) fn systemd_process() -> Result<ServiceProcess, ServiceError> {
    let properties = "--property=ActiveState,MainPID,NRestarts";
    Ok(systemd_state(&systemctl(&["show", systemd::UNIT, properties])?))
}

/// Reads lines of `NAME=VALUE`.
fn systemd_state(shown: &str) -> ServiceProcess {
    let value = |name: &str| {
        let lines = || shown.lines().filter_map(|line| line.split_once('='));
        lines().find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let number = |name| value(name).and_then(|value| value.parse().ok());
    // Between two starts it is `activating`.
    let is_running =
        matches!(value("ActiveState"), Some("active" | "activating" | "reloading" | "deactivating"));
    ServiceProcess {
        is_running,
        pid: number("MainPID").filter(|pid| *pid > 0),
        restarts: number("NRestarts"),
    }
}

/// Writes the property list and starts it.
pub(super) fn start_launchd(
    service: &ServiceDefinition,
    folders: &ServiceFolders,
    at_login: bool,
) -> Result<(), ServiceError> {
    let path = agent(folders, at_login);
    check_own(&path, launchd::MARK)?;
    // One of a start before.
    let _ = run("launchctl", &["bootout", &target(folders)?]);
    write_private(&path, &launchd::plist(service))?;
    run("launchctl", &["bootstrap", &domain(folders)?, &path.display().to_string()])?;
    Ok(())
}

/// launchd starts agents of its own folder at each login.
fn agent(folders: &ServiceFolders, at_login: bool) -> PathBuf {
    let path = folders.agent();
    if at_login { path } else { folders.own.join(path.file_name().unwrap_or_default()) }
}

pub(super) fn stop_launchd(folders: &ServiceFolders, at_login: bool) -> Result<(), ServiceError> {
    let target = target(folders)?;
    if launchd_process(folders)?.is_running {
        run("launchctl", &["bootout", &target])?;
    }
    let started = Instant::now();
    // It may end after the command.
    while run("launchctl", &["print", &target]).is_ok() {
        if started.elapsed() > STOP {
            return Err(ServiceError::DoesNotEnd { pid: launchd_process(folders)?.pid.unwrap_or(0) });
        }
        thread::sleep(POLL);
    }
    let path = agent(folders, at_login);
    match path.exists() {
        true => fs::remove_file(&path).map_err(file_error(&path)),
        false => Ok(()),
    }
}

/// `gui/` and the number of the user.
fn domain(folders: &ServiceFolders) -> Result<String, ServiceError> {
    let folder = fs::metadata(&folders.own).map_err(file_error(&folders.own))?;
    Ok(format!("gui/{}", folder.uid()))
}

fn target(folders: &ServiceFolders) -> Result<String, ServiceError> {
    Ok(format!("{}/{}", domain(folders)?, launchd::LABEL))
}

pub(super) fn launchd_process(folders: &ServiceFolders) -> Result<ServiceProcess, ServiceError> {
    // It fails if launchd does not know the agent.
    let shown = run("launchctl", &["print", &target(folders)?]);
    Ok(shown.map_or_else(|_| ServiceProcess::default(), |shown| launchd_state(&shown)))
}

/// Reads lines of `name = value`.
fn launchd_state(shown: &str) -> ServiceProcess {
    let value = |name: &str| {
        let lines = || shown.lines().filter_map(|line| line.trim().split_once(" = "));
        lines().find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let number = |name| value(name).and_then(|value| value.parse::<u32>().ok());
    let runs = number("runs");
    ServiceProcess { is_running: true, pid: number("pid"), restarts: runs.map(|runs| runs.saturating_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_managers_are_read() {
        let process = |is_running, pid, restarts| ServiceProcess { is_running, pid, restarts };
        let shown = "MainPID=12\nNRestarts=3\nActiveState=active\n";
        assert_eq!(systemd_state(shown), process(true, Some(12), Some(3)));
        let shown = "MainPID=0\nNRestarts=5\nActiveState=failed\n";
        assert_eq!(systemd_state(shown), process(false, None, Some(5)));
        let shown =
            "gui/501/lanner.server = {\n\tactive count = 1\n\tstate = running\n\truns = 2\n\tpid = 71\n}";
        assert_eq!(launchd_state(shown), process(true, Some(71), Some(1)));
    }
}
