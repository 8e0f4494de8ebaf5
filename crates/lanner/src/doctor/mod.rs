//! The checks of `lanner doctor`. Each looks at a [`HostInfo`], which tests replace by folders and
//! outputs of other machines; none changes anything.

mod bug_report;
mod disk;
mod gpu;
mod memory;
mod mlx;
mod processor;

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;

pub(crate) use self::bug_report::{BugReport, Redaction};
use crate::{host::HostInfo, hub::HubConfig, launch::AGENTS};

/// One line of the result.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub name: &'static str,
    pub status: Status,
    pub found: String,
    /// What to do about it.
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Ok,
    Warn,
    Error,
}

/// What is looked at beside the machine.
pub(crate) struct Scope<'a> {
    pub hub: &'a Result<HubConfig, String>,
    pub config_file: Option<&'a PathBuf>,
    pub config_fault: Option<&'a str>,
    pub prefixes: Option<&'a PathBuf>,
    pub kernels: Option<&'a PathBuf>,
    pub path: &'a [PathBuf],
    pub address: SocketAddr,
    /// The version of the Lanner server there, if one answers.
    pub server: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, found: found.into(), hint: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { name, status: Status::Warn, found: found.into(), hint: Some(hint.into()) }
    }

    fn error(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { name, status: Status::Error, found: found.into(), hint: Some(hint.into()) }
    }
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Error => "error",
        }
    }
}

/// All checks that need no network.
pub(crate) fn checks(machine: &HostInfo, scope: &Scope) -> Vec<Check> {
    let mut checks = vec![system(machine), processor::instructions(machine)];
    checks.extend(processor::quota(machine));
    checks.push(memory::memory(machine));
    checks.extend(memory::pressure(machine));
    checks.extend(memory::wired_limit(machine));
    checks.extend(mlx::checks(machine));
    checks.extend(gpu::checks(machine, scope.kernels));
    checks.push(config(scope));
    checks.extend(disk::checks(machine, scope));
    checks.push(port(scope));
    checks.push(agents(scope));
    checks
}

fn system(machine: &HostInfo) -> Check {
    let version = match machine.os {
        "macos" => machine.output("sw_vers", &["-productVersion"]),
        _ => machine.output("uname", &["-r"]),
    };
    let version = version.map(|version| format!(" {version}")).unwrap_or_default();
    let found = format!("Lanner {}, {}{version}, {}", env!("CARGO_PKG_VERSION"), machine.os, machine.arch);
    match (machine.os, machine.arch) {
        ("linux", "x86_64") => Check::ok("system", found),
        ("linux" | "macos", "aarch64") => Check::warn(
            "system",
            found,
            "Lanner has not been tried on this platform yet: please report what works and what does not",
        ),
        _ => Check::error("system", found, "Lanner runs on Linux and on macOS with Apple Silicon"),
    }
}

fn config(scope: &Scope) -> Check {
    match (scope.config_fault, scope.config_file) {
        (Some(fault), _) => {
            Check::error("config", fault, "docs/cli.md lists the keys; every other command stops at this")
        }
        (None, Some(file)) => Check::ok("config", file.display().to_string()),
        (None, None) => Check::ok("config", "no config file"),
    }
}

fn port(scope: &Scope) -> Check {
    let address = scope.address;
    if let Some(version) = &scope.server {
        return Check::ok("port", format!("Lanner {version} runs at {address}"));
    }
    match TcpListener::bind(address) {
        Ok(_) => Check::ok("port", format!("{address} is free")),
        Err(error) if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() => Check::warn(
            "port",
            format!("{address} is used by another program ({error})"),
            "choose another port with --port",
        ),
        Err(error) => Check::error(
            "port",
            format!("cannot listen on {address}: {error}"),
            "choose another address with --host and --port",
        ),
    }
}

fn agents(scope: &Scope) -> Check {
    let installed = AGENTS.iter().filter(|agent| agent.installed(scope.path).is_some());
    let names: Vec<&str> = installed.map(|agent| agent.name).collect();
    match names.is_empty() {
        true => Check::ok("agents", "none for lanner launch"),
        false => Check::ok("agents", names.join(", ")),
    }
}

/// Whether the hub can be reached; `answer` is the HTTP status or the failure.
pub(crate) fn hub(hub: &Result<HubConfig, String>, ask: impl Fn(&HubConfig) -> Result<u16, String>) -> Check {
    let Ok(config) = hub else { return Check::error("hub", "not asked", "mend the variables first") };
    let endpoint = &config.endpoint;
    if config.offline {
        return Check::warn("hub", "not asked: HF_HUB_OFFLINE is set", "unset it to download models");
    }
    match ask(config) {
        Ok(status @ 200..400) => Check::ok("hub", format!("{endpoint} answers {status}")),
        Ok(status) => Check::error(
            "hub",
            format!("{endpoint} answers {status}"),
            "check HF_ENDPOINT, HF_TOKEN and proxies",
        ),
        Err(error) => Check::error(
            "hub",
            format!("{endpoint} cannot be reached: {error}"),
            "check the network, HTTPS_PROXY and HF_ENDPOINT; models on this machine work without it",
        ),
    }
}

#[cfg(test)]
mod tests;
