//! `lanner eval`: measures any server with OpenAI's chat completions, or compares two reports. The
//! summary goes to stdout, progress to stderr.

use std::{fs, io::Write, path::Path};

use eval::{EvalOptions, Machine, Origin, Report};

use super::CommandError;
use crate::{bench::machine, config::EvalConfig, terminal::say};

/// # Errors
/// The server cannot be reached or answers nothing, a report cannot be read, or a file not written.
pub fn eval(config: &EvalConfig) -> Result<(), CommandError> {
    match config {
        EvalConfig::Run { options, json, html } => run(options, json.as_deref(), html.as_deref()),
        EvalConfig::Compare { reports, html } => {
            compare(reports.each_ref().map(|path| &**path), html.as_deref())
        }
    }
}

fn run(options: &EvalOptions, json: Option<&Path>, html: Option<&Path>) -> Result<(), CommandError> {
    let mut report = eval::run(options, origin(), &mut |line| say(format_args!("lanner: {line}")))?;
    report.origin.machine.load_after = load();
    if let Some(path) = json {
        write(path, &report.json())?;
    }
    if let Some(path) = html {
        write(path, &eval::page(&[("Report", &report)]))?;
    }
    Ok(write!(std::io::stdout(), "{}", eval::summary(&report))?)
}

fn compare(paths: [&Path; 2], html: Option<&Path>) -> Result<(), CommandError> {
    let names = paths.map(|path| path.display().to_string());
    let [a, b] = [Report::read(paths[0])?, Report::read(paths[1])?];
    let reports = [(&*names[0], &a), (&*names[1], &b)];
    if let Some(path) = html {
        write(path, &eval::page(&reports))?;
    }
    Ok(write!(std::io::stdout(), "{}", eval::compare(reports))?)
}

fn origin() -> Origin {
    let here = machine::Machine::here();
    Origin {
        lanner: env!("CARGO_PKG_VERSION").into(),
        date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        machine: Machine {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cpu: here.cpu,
            cores: here.cores,
            memory_bytes: machine::memory(),
            load_before: load(),
            load_after: None,
        },
    }
}

/// Linux's load average of the last minute.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

fn write(path: &Path, text: &str) -> Result<(), CommandError> {
    fs::write(path, text).map_err(|error| CommandError::Write { path: path.into(), error })
}
