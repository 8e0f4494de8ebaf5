//! Arguments of `lanner start`, `stop`, `status` and `logs`.

use std::ffi::OsString;

use clap::{Args, CommandFactory, ValueEnum, parser::ValueSource};

use super::{Cli, RemoteArgs, ServeArgs};
use crate::service::Manager;

#[derive(Debug, Args)]
pub struct StartArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// How the server runs in the background.
#[derive(Debug, Args)]
#[command(next_help_heading = "Service")]
pub struct ServiceArgs {
    /// What keeps the server running: a systemd unit of the user, a launchd agent, or a plain
    /// process, which nothing restarts [default: launchd on macOS; elsewhere systemd if it runs for
    /// the user, else plain].
    #[arg(long, value_name = "MANAGER")]
    pub manager: Option<ManagerArg>,
    /// Also start the server whenever the user logs in, until `lanner stop`.
    #[arg(long)]
    pub at_login: bool,
    /// Most seconds to wait until the server is ready; then it goes on starting, and this command
    /// fails.
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    pub wait: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ManagerArg {
    Systemd,
    Launchd,
    Plain,
}

impl From<ManagerArg> for Manager {
    fn from(manager: ManagerArg) -> Manager {
        match manager {
            ManagerArg::Systemd => Manager::Systemd,
            ManagerArg::Launchd => Manager::Launchd,
            ManagerArg::Plain => Manager::Plain,
        }
    }
}

#[derive(Debug, Args)]
pub struct StopArgs {
    /// Unload only this model, by one of the names under which it is served.
    pub model: Option<String>,
    #[command(flatten)]
    pub server: RemoteArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print a JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// An API key of the server, to list its models.
    #[arg(long, env = "LANNER_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Go on printing what the server writes, until Ctrl-C.
    #[arg(long, short)]
    pub follow: bool,
    /// Lines of the end to print.
    #[arg(long, short = 'n', value_name = "LINES", default_value = "50")]
    pub lines: usize,
}

/// The flags of a command line of `lanner start` that `lanner serve` takes too, API keys aside.
pub fn serve_flags(line: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut command = Cli::command();
    let Ok(matches) = command.try_get_matches_from_mut(line) else { return vec![] };
    let Some(("start", start)) = matches.subcommand() else { return vec![] };
    let Some(serve) = command.find_subcommand("serve") else { return vec![] };
    let (mut flags, mut seen) = (vec![], vec!["api_key"]);
    for argument in serve.get_arguments().chain(command.get_arguments()) {
        let id = argument.get_id().as_str();
        let is_typed = matches!(start.try_contains_id(id), Ok(true))
            && start.value_source(id) == Some(ValueSource::CommandLine);
        let Some(long) = argument.get_long().filter(|_| is_typed && !seen.contains(&id)) else { continue };
        seen.push(id);
        if !argument.get_action().takes_values() {
            flags.push(format!("--{long}").into());
            continue;
        }
        for value in start.get_raw(id).into_iter().flatten() {
            let mut flag = OsString::from(format!("--{long}="));
            flag.push(value);
            flags.push(flag);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &[&str], expected: &[&str]) {
        let line = ["lanner"].iter().chain(line).map(OsString::from);
        let mut flags = serve_flags(line);
        flags.sort();
        assert_eq!(flags, expected);
    }

    #[test]
    fn serve_flags_are_those_that_serve_takes() {
        check(&["start"], &[]);
        check(&["start", "--manager", "plain", "--wait", "5", "--at-login"], &[]);
        check(&["start", "-m", "a b", "--port", "0", "--no-pin"], &["--model=a b", "--no-pin", "--port=0"]);
        check(&["--log", "info", "start", "--config", "c.toml"], &["--config=c.toml", "--log=info"]);
        check(&["start", "--api-key", "secret", "--keep-alive=-1"], &["--keep-alive=-1"]);
        check(
            &["start", "--cors-origin", "*", "--cors-origin", "https://a.b", "--speculate", "off"],
            &["--cors-origin=*", "--cors-origin=https://a.b", "--speculate=off"],
        );
        check(&["serve", "--port", "0"], &[]);
    }
}
