//! `lanner launch`: starts a coding agent with a model of ours, and a server if none runs.

pub(super) mod process;
mod script;
mod server;

use std::{
    ffi::OsString,
    io::Write,
    process::{Command, ExitCode},
};

use tokio::runtime::Builder;

use self::{process::Signals, server::OwnServer};
use super::CommandError;
use crate::{
    config::{LaunchAction, LaunchConfig},
    launch::{AGENTS, Agent, Backend, LaunchError, Settings, entry},
    terminal::{say, table},
};

/// The exit code is that of the agent.
///
/// # Errors
/// The agent is not installed, its files cannot be changed, no server can be reached or started, or
/// the model is too small for the agent.
pub fn launch(config: &LaunchConfig) -> Result<ExitCode, CommandError> {
    let Some(agent) = config.agent else {
        write!(std::io::stdout(), "{}", list(config))?;
        return Ok(ExitCode::SUCCESS);
    };
    match config.action {
        LaunchAction::Run => run(agent, config),
        LaunchAction::Print => print(agent, config).map(|()| ExitCode::SUCCESS),
        LaunchAction::Restore => restore(agent, config).map(|()| ExitCode::SUCCESS),
    }
}

fn list(config: &LaunchConfig) -> String {
    let row = |agent: &Agent| {
        let installed = match agent.installed(&config.path) {
            Some(program) => program.display().to_string(),
            None => format!("not installed; {}", agent.install),
        };
        [agent.name.to_owned(), agent.title.to_owned(), installed]
    };
    let header = ["agent", "name", "program"].map(str::to_owned);
    table(&[vec![header], AGENTS.iter().map(row).collect()].concat())
}

fn run(agent: &Agent, config: &LaunchConfig) -> Result<ExitCode, CommandError> {
    let program = agent.installed(&config.path).ok_or(LaunchError::NotInstalled {
        title: agent.title,
        program: agent.program,
        install: agent.install,
    })?;
    // An interrupt while a running server loads a model ends only this process.
    let running = server::running(config)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let (backend, own) = match running {
            Some(backend) => (backend, None),
            None => OwnServer::start(config, &mut signals).await.map(|(b, own)| (b, Some(own)))?,
        };
        if let Some(problem) = agent.problem(&backend).filter(|_| !config.force) {
            return Err(LaunchError::Unfit { problem }.into());
        }
        let settings = (agent.settings)(&backend, &config.folders);
        apply(agent, config, &settings)?;
        let mut command = Command::new(program);
        command.args(&settings.args).args(arguments(&settings, config)).envs(settings.env);
        command.envs(no_proxy(config));
        let code = process::run(command, agent.program, &mut signals).await?;
        drop(own);
        Ok(code)
    })
}

/// Writes the files that the agent needs.
fn apply(agent: &Agent, config: &LaunchConfig, settings: &Settings) -> Result<(), LaunchError> {
    for (path, text) in &settings.files {
        entry::write_private(path, text)?;
    }
    let Some(entry) = &settings.entry else { return Ok(()) };
    entry.write(&config.folders.of(agent.name))?;
    let (name, file) = (agent.name, entry.file.display());
    say(format_args!("lanner: added an entry to {file}; lanner launch {name} --restore takes it out"));
    Ok(())
}

/// The user's arguments, or those in their place.
fn arguments(settings: &Settings, config: &LaunchConfig) -> Vec<OsString> {
    match config.args.is_empty() {
        true => settings.default_args.iter().map(OsString::from).collect(),
        false => config.args.clone(),
    }
}

/// A proxy must not stand between the agent and a server on this machine.
fn no_proxy(config: &LaunchConfig) -> [(&'static str, String); 2] {
    let host = config.server.address.ip();
    let others = config.no_proxy.iter().filter(|hosts| !hosts.is_empty()).map(|hosts| format!(",{hosts}"));
    let hosts = format!("{host}{}", others.collect::<String>());
    [("NO_PROXY", hosts.clone()), ("no_proxy", hosts)]
}

fn print(agent: &Agent, config: &LaunchConfig) -> Result<(), CommandError> {
    let (backend, origin) = match server::running_unchanged(config)? {
        Some(backend) => (backend, "the server that runs there"),
        None => (server::predicted(config)?, "a server that would be started"),
    };
    if let Some(problem) = agent.problem(&backend) {
        say(format_args!("lanner: warning: {problem}"));
    }
    let settings = (agent.settings)(&backend, &config.folders);
    let arguments = arguments(&settings, config);
    let text = script::script(agent, &backend, origin, &settings, &arguments, &no_proxy(config));
    Ok(write!(std::io::stdout(), "{text}")?)
}

fn restore(agent: &Agent, config: &LaunchConfig) -> Result<(), CommandError> {
    // Which file it is does not depend on the server.
    let nothing = Backend {
        url: config.server.url(),
        key: None,
        model: String::new(),
        context: None,
        calls_tools: None,
        takes_images: false,
    };
    let settings = (agent.settings)(&nothing, &config.folders);
    let Some(entry) = settings.entry else {
        say(format_args!("lanner: nothing to restore: no file of {} is ever changed", agent.title));
        return Ok(());
    };
    let file = entry.file.display();
    match entry.restore(&config.folders.of(agent.name))? {
        entry::Restored::Whole => say(format_args!("lanner: {file} is as it was")),
        entry::Restored::Entry => {
            say(format_args!("lanner: took the entry out of {file}; later changes of it are kept"));
        }
        entry::Restored::Nothing => say(format_args!("lanner: nothing to restore: {file} was not changed")),
    }
    Ok(())
}
