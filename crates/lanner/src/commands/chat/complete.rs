//! ChatCompleter on Tab: commands, and what follows some of them.

use rustyline::{
    Context, Helper,
    completion::{Completer, FilenameCompleter, Pair},
    highlight::Highlighter,
    hint::Hinter,
    validate::Validator,
};
use store::{Scope, Store};

use super::{parameters, slash::COMMANDS};
use crate::{builtin::BUILTIN, commands::models::cached, hub::HubConfig, terminal::one_line};

/// Conversations that are offered.
const CONVERSATIONS: usize = 20;

pub(super) struct ChatCompleter {
    pub(super) hub: HubConfig,
    pub(super) store: Option<Store>,
    files: FilenameCompleter,
}

impl ChatCompleter {
    pub(super) fn new(hub: HubConfig, store: Option<Store>) -> ChatCompleter {
        ChatCompleter { hub, store, files: FilenameCompleter::new() }
    }

    /// Completions of a command's argument.
    fn follows(&self, command: &str) -> Vec<Pair> {
        let names = |names: &[&str]| names.iter().map(|name| pair(name, name)).collect();
        match command {
            "/model" => {
                let cached = cached(&self.hub).unwrap_or_default();
                let cached = cached.iter().map(|model| model.repo.to_string());
                std::iter::once(BUILTIN.name.to_owned())
                    .chain(cached)
                    .map(|name| pair(&name, &name))
                    .collect()
            }
            "/set" => names(&parameters::NAMES),
            "/think" => names(&["on", "off"]),
            "/load" => {
                let page = self.store.as_ref().map(|store| store.list(&Scope::All, None, CONVERSATIONS));
                let found = page.and_then(Result::ok).map_or(vec![], |page| page.items);
                let offered = |id: &str, title: &str| pair(&format!("{id}  {}", one_line(title)), id);
                found.iter().map(|one| offered(&one.id, &one.title)).collect()
            }
            _ => vec![],
        }
    }
}

fn pair(display: &str, replacement: &str) -> Pair {
    Pair { display: display.to_owned(), replacement: replacement.to_owned() }
}

impl Completer for ChatCompleter {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, context: &Context) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..at];
        if !before.starts_with('/') {
            return Ok((at, vec![]));
        }
        let Some((command, typed)) = before.split_once(' ') else {
            let found = COMMANDS.iter().filter(|(name, ..)| name.starts_with(before));
            let command = |(name, follows, _): &(&str, &str, &str)| {
                pair(name, &if follows.is_empty() { (*name).to_owned() } else { format!("{name} ") })
            };
            return Ok((0, found.map(command).collect()));
        };
        if matches!(command, "/save" | "/image") {
            return self.files.complete(line, at, context);
        }
        let mut found = self.follows(command);
        found.retain(|one| one.replacement.starts_with(typed));
        Ok((command.len() + 1, found))
    }
}

impl Helper for ChatCompleter {}
impl Highlighter for ChatCompleter {}
impl Validator for ChatCompleter {}
impl Hinter for ChatCompleter {
    type Hint = String;
}
