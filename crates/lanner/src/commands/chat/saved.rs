//! The conversation in the store: saved after each answer, continued from there.

use std::path::PathBuf;

use serde_json::{Map, Value};
use store::{Conversation, Scope, Store, StoreError, Summary, Update};

use super::branch::{Branch, new_id};
use crate::{
    commands::{CommandError, history, serve::open_store},
    config::{ChatConfig, StoreConfig},
    terminal::{one_line, say},
};

/// Titles that are listed where several begin alike.
const LISTED: usize = 8;

/// For a conversation that is gone.
const REMOVED: &str = "this conversation was removed elsewhere, so it is not saved any more: /save FILE writes it into \
                       a file, /clear begins one that is saved";

/// A conversation that is saved, or `None` of it if nothing is.
pub(super) struct Saved {
    store: Option<Store>,
    id: String,
    is_stored: bool,
    /// Another program has removed it; what follows is not stored again.
    is_removed: bool,
    /// Those of the web page are kept, if it made the conversation.
    settings: Map<String, Value>,
    has_failed: bool,
    /// Files that `/save` has written.
    pub(super) files: Vec<PathBuf>,
}

/// A stored conversation as the chat goes on with it.
pub(super) struct Continued {
    pub(super) title: String,
    pub(super) system: Option<String>,
    pub(super) branch: Branch,
}

impl Saved {
    /// Opens the store, and the conversation to continue.
    ///
    /// # Errors
    /// There is no such conversation, or a store that the user named cannot be opened.
    pub(super) fn open(config: &ChatConfig) -> Result<(Saved, Option<Continued>), StoreError> {
        let is_named = config.continued.is_some();
        let store =
            config.store.clone().map(|store| StoreConfig { is_named: store.is_named || is_named, ..store });
        let store = open_store(store.as_ref())?;
        let (settings, has_failed) = (Map::new(), false);
        let mut saved = Saved {
            store,
            id: new_id(),
            is_stored: false,
            is_removed: false,
            settings,
            has_failed,
            files: vec![],
        };
        let Some(start) = &config.continued else { return Ok((saved, None)) };
        let Some(store) = &saved.store else {
            return Err(start.clone().map_or(StoreError::Empty, StoreError::NotFound));
        };
        let read = store.conversation(&Scope::All, &store.find(&Scope::All, start.as_deref())?)?;
        let continued = saved.attach(&read);
        Ok((saved, Some(continued)))
    }

    pub(super) fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Goes on with the only conversation whose id or title begins like this.
    ///
    /// # Errors
    /// There is none or several, or the store cannot be read.
    pub(super) fn load(&mut self, start: &str) -> Result<Continued, CommandError> {
        let store = self.opened()?;
        let id = match store.find(&Scope::All, Some(start)) {
            Ok(id) => id,
            Err(StoreError::NotFound(_) | StoreError::Ambiguous(_)) => titled(store, start)?,
            Err(error) => return Err(error.into()),
        };
        let read = store.conversation(&Scope::All, &id)?;
        Ok(self.attach(&read))
    }

    /// The latest conversations that have all words.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) fn list(&self, words: &str) -> Result<Vec<Summary>, CommandError> {
        history::summaries(self.opened()?, words, LISTED)
    }

    fn opened(&self) -> Result<&Store, CommandError> {
        self.store.as_ref().ok_or(CommandError::Chat("conversations are not saved in this chat".into()))
    }

    fn attach(&mut self, stored: &Conversation) -> Continued {
        self.id.clone_from(&stored.id);
        self.settings.clone_from(&stored.settings);
        (self.is_stored, self.is_removed) = (true, false);
        Continued {
            title: one_line(&stored.title),
            system: stored.system().map(str::to_owned),
            branch: Branch::of(stored),
        }
    }

    /// Saves what is new of the branch, and that it is selected. A failure is told once, and ends
    /// nothing; the next save tries again.
    pub(super) fn save(&mut self, branch: &mut Branch, system: Option<&str>) {
        let Some(store) = self.store.as_ref().filter(|_| !self.is_removed) else { return };
        self.settings.insert("system".into(), system.unwrap_or_default().into());
        let update = Update {
            leaf: branch.leaf().map(str::to_owned),
            messages: branch.unsaved().to_vec(),
            settings: Some(self.settings.clone()),
            ..Update::default()
        };
        match store.put("", &self.id, update) {
            Ok(_) => {
                branch.set_saved();
                (self.is_stored, self.has_failed) = (true, false);
            }
            Err(_) if self.is_stored && is_gone(store, &self.id) => {
                self.is_removed = true;
                say(format_args!("({REMOVED})"));
            }
            Err(error) if std::mem::replace(&mut self.has_failed, true) => {
                tracing::debug!("the conversation is not saved: {error}");
            }
            Err(error) => say(format_args!("(the conversation is not saved: {error})")),
        }
    }

    /// Where the conversation is, in a sentence.
    pub(super) fn place(&self) -> String {
        match &self.store {
            None => "this conversation is not saved: /save FILE writes it into a file".into(),
            Some(_) if self.is_removed => REMOVED.into(),
            Some(_) if self.has_failed => {
                "the latest messages are not saved, as the store could not be written: /save FILE writes them into a file"
                    .into()
            }
            Some(_) if !self.is_stored => "this conversation is saved after the first answer".into(),
            Some(store) => {
                let (id, path) = (&self.id, store.path().display());
                format!(
                    "saved as {id} in {path}: /load {id} or lanner chat --continue {id} goes on with it; /save FILE \
                     writes a file"
                )
            }
        }
    }

    /// Begins another conversation.
    pub(super) fn restart(&mut self) {
        (self.id, self.is_stored, self.is_removed) = (new_id(), false, false);
        self.settings.clear();
    }
}

fn is_gone(store: &Store, id: &str) -> bool {
    matches!(store.conversation(&Scope::All, id), Err(StoreError::NotFound(_)))
}

/// The id of the only conversation whose title begins like this, in any case.
fn titled(store: &Store, start: &str) -> Result<String, CommandError> {
    let wanted = start.to_lowercase();
    let all = history::summaries(store, "", usize::MAX)?;
    let is_meant = |one: &&Summary| one.title.to_lowercase().starts_with(&wanted);
    let found: Vec<&Summary> = all.iter().filter(is_meant).collect();
    match &found[..] {
        [] => Err(CommandError::Chat(format!(
            "no saved conversation has an id or a title that begins with `{start}`\n\
             hint: /history lists them; /model NAME loads another model"
        ))),
        [one] => Ok(one.id.clone()),
        several => {
            let line = |one: &&Summary| format!("\n  {}  {}", one.id, one_line(&one.title));
            let lines: String = several.iter().take(LISTED).map(line).collect();
            let count = several.len();
            Err(CommandError::Chat(format!("{count} conversations begin with `{start}`:{lines}")))
        }
    }
}
