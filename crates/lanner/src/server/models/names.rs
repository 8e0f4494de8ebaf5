//! Which models requests may name, and where each is. Nothing is loaded or downloaded here, and a
//! request's name is never taken for a path.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    builtin::BUILTIN,
    hub::HubConfig,
    source::{self, ModelLocation, Purpose, Source, SourceError},
};

/// The name by which requests may call the default model.
pub(super) const DEFAULT: &str = "default";

/// A name without the tag that Ollama's clients add.
pub(crate) fn untagged(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// Names and locations of models on this machine.
pub struct Names {
    hub: HubConfig,
    /// To models as `--model` names them.
    aliases: BTreeMap<String, String>,
    known: Mutex<Known>,
}

struct Known {
    /// The default model's name in responses.
    default_name: String,
    /// Where it is; `None`: it cannot be loaded again.
    default: Option<Source>,
    /// Folders and files that were loaded, by their names.
    folders: BTreeMap<String, Source>,
}

/// Which loaded model a request's name means.
#[derive(Clone, Copy, Debug)]
pub(super) enum ModelKey<'a> {
    Default,
    /// It may be another model's own name, and comes before that.
    Alias(&'a str),
    /// A model's name, or one with Ollama's tag.
    Name(&'a str),
}

/// A model on this machine that a request has named.
#[derive(Clone, Debug)]
pub enum Wanted {
    Known {
        source: Source,
        is_default: bool,
    },
    /// In the words of `--model`.
    Alias(String),
    /// The built-in model, or one in the cache.
    Installed(String),
}

impl Names {
    pub fn new(hub: HubConfig, aliases: BTreeMap<String, String>, default_name: String) -> Names {
        let known = Known { default_name, default: None, folders: BTreeMap::new() };
        Names { hub, aliases, known: Mutex::new(known) }
    }

    /// A model was loaded as the default one.
    pub fn set_default(&self, name: &str, source: Option<Source>) {
        let mut known = self.lock();
        known.default_name = name.to_owned();
        known.default = source;
    }

    /// A model was loaded: folders and files can be loaded again by their names.
    pub fn remember(&self, source: &Source) {
        if matches!(source.location, ModelLocation::Folder(_) | ModelLocation::File(_)) {
            self.lock().folders.insert(source.name.clone(), source.clone());
        }
    }

    pub fn default_name(&self) -> String {
        self.lock().default_name.clone()
    }

    /// Whether the default model is loaded from there.
    pub fn is_default(&self, location: &ModelLocation) -> bool {
        self.lock().default.as_ref().is_some_and(|source| source.location == *location)
    }

    fn is_alias(&self, name: &str) -> bool {
        self.aliases.contains_key(name)
    }

    pub(super) fn key<'a>(&self, name: Option<&'a str>) -> ModelKey<'a> {
        match name {
            Some(name) if self.is_alias(name) => ModelKey::Alias(name),
            None | Some(DEFAULT) => ModelKey::Default,
            Some(name) => ModelKey::Name(name),
        }
    }

    /// Aliases and their models, as far as those are here. Reads the disk.
    pub fn aliases(&self) -> Vec<(&str, Source)> {
        let locate = |model: &str| Source::locate(Some(model), &self.hub, Purpose::Describe).ok();
        self.aliases.iter().filter_map(|(alias, model)| Some((&**alias, locate(model)?))).collect()
    }

    /// Aliases of the model that is there. Reads the disk.
    pub fn aliases_at(&self, location: &ModelLocation) -> Vec<String> {
        let aliases = self.aliases();
        let own = aliases.iter().filter(|(_, source)| source.location == *location);
        own.map(|(alias, _)| (*alias).to_owned()).collect()
    }

    /// Folders and files that were loaded.
    pub fn folders(&self) -> Vec<Source> {
        self.lock().folders.values().cloned().collect()
    }

    /// The model of this name, if it seems to be here; reads at most one small file.
    pub fn wanted(&self, name: &str) -> Option<Wanted> {
        let known = self.lock();
        if let Some(model) = self.aliases.get(name) {
            return Some(Wanted::Alias(model.clone()));
        }
        if name == DEFAULT || name == known.default_name {
            let source = known.default.clone()?;
            return Some(Wanted::Known { source, is_default: true });
        }
        if let Some(source) = known.folders.get(name) {
            return Some(Wanted::Known { source: source.clone(), is_default: false });
        }
        drop(known);
        (name == BUILTIN.name || self.is_in_cache(name)).then(|| Wanted::Installed(name.to_owned()))
    }

    /// Where it is.
    ///
    /// # Errors
    /// It is not there any more, or not complete.
    pub fn find(&self, wanted: &Wanted, purpose: Purpose) -> Result<Source, SourceError> {
        match wanted {
            Wanted::Known { source, .. } => Ok(source.clone()),
            Wanted::Alias(model) => Source::locate(Some(model), &self.hub, purpose),
            Wanted::Installed(name) => Source::installed(name, &self.hub, purpose),
        }
    }

    fn is_in_cache(&self, name: &str) -> bool {
        let (Some(repo), Ok(cache)) = (source::repo(name), self.hub.cache()) else { return false };
        cache.repo(&repo).commit(repo.revision()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
