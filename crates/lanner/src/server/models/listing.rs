//! The models that requests can name: loaded, being loaded, and on disk.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{names::untagged, registry::LoadedModel};
use crate::{
    builtin::BUILTIN,
    hub::{self, CachedModel, LastUsed, describe_config},
    model_files,
    server::app_state::AppState,
    source::{ModelLocation, Purpose, Source},
};

/// Where a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelState {
    Loaded,
    Loading,
    OnDisk,
}

impl ModelState {
    /// The name in responses.
    pub fn name(self) -> &'static str {
        match self {
            ModelState::Loaded => "loaded",
            ModelState::Loading => "loading",
            ModelState::OnDisk => "on_disk",
        }
    }
}

/// A model that can be loaded.
pub struct DiskModel {
    pub name: String,
    pub location: ModelLocation,
    pub aliases: Vec<String>,
    /// In bytes.
    pub size: u64,
    /// config.json's model_type.
    pub family: String,
    pub format: String,
    /// When its config.json was written, in seconds since the Unix epoch.
    pub created: u64,
}

/// A model in a list.
pub enum Listed {
    Loaded(LoadedModel),
    OnDisk(DiskModel, ModelState),
}

impl AppState {
    /// Loaded models, then the others by name. Reads the disk.
    pub fn list(&self) -> Vec<Listed> {
        let (loaded, aliases) = (self.registry().loaded(), self.names().aliases());
        let current = self.loads().current();
        let is_loaded = |model: &DiskModel| loaded.iter().any(|own| own.is_at(&model.location));
        let others = self.on_disk(&aliases).into_iter().filter(|model| !is_loaded(model)).map(|model| {
            let is_loading = current.as_ref() == Some(&model.location);
            let state = if is_loading { ModelState::Loading } else { ModelState::OnDisk };
            Listed::OnDisk(model, state)
        });
        let others: Vec<Listed> = others.collect();
        loaded.into_iter().map(Listed::Loaded).chain(others).collect()
    }

    /// The model of this name that is not loaded. Reads the disk.
    pub fn find_on_disk(&self, name: &str) -> Option<(DiskModel, ModelState)> {
        let locate = |name| self.names().find(&self.names().wanted(name)?, Purpose::Describe).ok();
        let source = locate(name).or_else(|| locate(untagged(name)))?;
        self.list().into_iter().find_map(|model| match model {
            Listed::OnDisk(model, state) if model.location == source.location => Some((model, state)),
            _ => None,
        })
    }

    /// Complete models on this machine, loaded or not.
    fn on_disk(&self, aliases: &[(&str, Source)]) -> Vec<DiskModel> {
        let (hub, uses) = (self.hub(), LastUsed(self.hub().uses.clone()));
        let cached = hub.cache().map(|cache| hub::scan(&cache, &uses)).unwrap_or_default();
        let cached = cached.into_iter().filter(|model| model.missing.is_none()).map(DiskModel::cached);
        let mut all: Vec<DiskModel> = cached.chain(DiskModel::builtin()).collect();
        let folders = self.names().folders();
        for source in folders.iter().chain(aliases.iter().map(|(_, source)| source)) {
            if !all.iter().any(|model| model.location == source.location) {
                all.extend(DiskModel::of_folder(source));
            }
        }
        for model in &mut all {
            let own = aliases.iter().filter(|(_, source)| source.location == model.location);
            model.aliases = own.map(|(alias, _)| (*alias).to_owned()).collect();
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

impl DiskModel {
    fn cached(model: CachedModel) -> DiskModel {
        let CachedModel { repo, commit, refs, path, size, family, format, .. } = model;
        let name = match &refs[..] {
            _ if refs.iter().any(|name| name == "main") => repo.model(),
            [name, ..] => repo.at(name).to_string(),
            [] => repo.at(&commit).to_string(),
        };
        let created = written(&path);
        let location = if path.is_dir() { ModelLocation::Folder(path) } else { ModelLocation::File(path) };
        DiskModel { name, location, aliases: vec![], size, family, format, created }
    }

    /// `None` if its config.json is not there any more.
    fn of_folder(source: &Source) -> Option<DiskModel> {
        let created = match &source.location {
            ModelLocation::Builtin => return None,
            ModelLocation::Folder(path) | ModelLocation::File(path) => written(path),
        };
        DiskModel::at(source.name.clone(), source.location.clone(), created)
    }

    fn builtin() -> Option<DiskModel> {
        DiskModel::at(BUILTIN.name.to_owned(), ModelLocation::Builtin, 0)
    }

    fn at(name: String, location: ModelLocation, created: u64) -> Option<DiskModel> {
        let (family, format) = describe_config(&model_files::config(&location)?)?;
        let size = model_files::weight_bytes(&location);
        Some(DiskModel { name, location, aliases: vec![], size, family, format, created })
    }
}

/// When a file or folder was last changed, in seconds since the Unix epoch.
fn written(path: &Path) -> u64 {
    let time = fs::metadata(path).and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
