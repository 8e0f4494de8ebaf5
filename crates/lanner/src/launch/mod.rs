//! Coding agents that `lanner launch` starts: how each is installed, and the settings that make it
//! use a server of ours. [`entry`] changes files of agents, [`agents`] has the settings.

mod agents;
pub mod entry;
mod json_edit;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use self::{agents::AGENTS, entry::Entry};

/// Tokens that an agent needs beside its own prompts, for the task, a file and an answer.
const WORK_TOKENS: usize = 4096;
/// What an agent sends to a server that asks for no key.
const NO_KEY: &str = "lanner";

/// A coding agent.
#[derive(Debug)]
pub struct Agent {
    /// As typed after `lanner launch`.
    pub name: &'static str,
    pub title: &'static str,
    /// Looked for in PATH.
    pub program: &'static str,
    /// The command that installs it, or where its maker tells how.
    pub install: &'static str,
    /// About as many tokens as its first prompt has with its tools; docs/agents.md has the
    /// measurements.
    pub prompt_tokens: usize,
    /// Whether it edits files through tool calls.
    pub calls_tools: bool,
    pub settings: fn(&Backend, &Folders) -> Settings,
}

/// The server and the model for an agent.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Without a slash at the end.
    pub url: String,
    /// `None`: the server asks for none.
    pub key: Option<String>,
    pub model: String,
    /// Tokens of a prompt and its answer that the model and the memory take; `None`: not known.
    pub context: Option<usize>,
    /// Whether tool calls of the model are understood; `None`: not known.
    pub calls_tools: Option<bool>,
    /// Whether the model is known to take images.
    pub takes_images: bool,
}

/// Where files of ours and of agents lie.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Ours, one folder for each agent below it.
    pub own: PathBuf,
    /// That of pi.
    pub pi: PathBuf,
    /// That of Cline.
    pub cline: PathBuf,
}

/// How an agent is started.
#[derive(Debug, Default)]
pub struct Settings {
    pub env: Vec<(&'static str, String)>,
    /// Before the user's own arguments.
    pub args: Vec<String>,
    /// In place of arguments if the user gives none.
    pub default_args: &'static [&'static str],
    /// Files of our own, with their text.
    pub files: Vec<(PathBuf, String)>,
    /// A change of a file that belongs to the agent.
    pub entry: Option<Entry>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("{title} is not installed: there is no `{program}` in PATH\nhint: {install}")]
    NotInstalled { title: &'static str, program: &'static str, install: &'static str },
    #[error(
        "{problem}\nhint: choose another model with --model (`lanner models` lists those here), or add --force"
    )]
    Unfit { problem: String },
    #[error("the server at {url} has no model `{model}` loaded, and loads none: {message}")]
    NoModel { url: String, model: String, message: String },
    #[error("there is no home folder for the files of agents; set HOME")]
    NoHome,
    #[error("{} is not a file that an entry can be added to: {error}", path.display())]
    NotJson { path: PathBuf, error: json_edit::JsonError },
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("the server ended before it answered; its last lines, from {}:\n{tail}", log.display())]
    ServerEnded { log: PathBuf, tail: String },
    #[error("stopped before the server answered")]
    Stopped,
    #[error("cannot start {program}: {error}")]
    Start { program: String, error: io::Error },
}

impl Backend {
    /// The address of OpenAI's routes.
    fn v1(&self) -> String {
        format!("{}/v1", self.url)
    }

    fn key_or_placeholder(&self) -> String {
        self.key.clone().unwrap_or_else(|| NO_KEY.into())
    }

    /// Most tokens of an answer that leave a good part of the context to the prompt.
    fn output_tokens(&self) -> Option<usize> {
        self.context.map(|context| (context / 4).min(32_768))
    }
}

impl Folders {
    /// The folder of our files for an agent.
    pub fn of(&self, agent: &str) -> PathBuf {
        self.own.join(agent)
    }
}

impl Agent {
    pub fn named(name: &str) -> Option<&'static Agent> {
        AGENTS.iter().find(|agent| agent.name == name)
    }

    /// The program in one of these folders.
    pub fn installed(&self, path: &[PathBuf]) -> Option<PathBuf> {
        path.iter().map(|folder| folder.join(self.program)).find(|file| is_executable(file))
    }

    /// Why a model does not serve this agent.
    pub fn problem(&self, backend: &Backend) -> Option<String> {
        let (title, model, least) = (self.title, &backend.model, self.prompt_tokens + WORK_TOKENS);
        if let Some(context) = backend.context.filter(|context| *context < least) {
            return Some(format!(
                "{title} needs a context of {least} tokens or more, as its own prompts have about {}; {model} has \
                 {context}",
                self.prompt_tokens
            ));
        }
        let silent = self.calls_tools && backend.calls_tools == Some(false);
        silent.then(|| {
            format!(
                "{title} edits files through tool calls, and {model} has no syntax for them that Lanner knows"
            )
        })
    }
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
