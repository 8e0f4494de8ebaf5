//! Finds the model that `--model` names: a folder, a file, a downloaded model or the built-in one.
//! Downloads nothing.

use std::path::{Path, PathBuf};

use crate::{
    builtin::BUILTIN,
    catalog,
    hub::{self, HubConfig, HubError, LastUsed, Missing, RepoName},
};

/// A model on this machine, and its name.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    /// The name that the user typed, if it is another.
    pub alias: Option<String>,
    pub location: ModelLocation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelLocation {
    Builtin,
    Folder(PathBuf),
    /// A safetensors file; config.json and the tokenizer are in the same folder.
    File(PathBuf),
}

/// Why a model is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Load,
    Describe,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("there is no model folder {}", .0.display())]
    NoFolder(PathBuf),
    #[error("{} is no safetensors file; --model takes a folder, a safetensors file, ORG/NAME or a short name", .0.display())]
    NotSafetensors(PathBuf),
    #[error(
        "there is no model `{0}`: no folder or file has this name, it is not ORG/NAME, and no short name\n\
         hint: lanner models lists what is here, lanner models --catalog the short names"
    )]
    Unknown(String),
    #[error("{0} has not been downloaded\nhint: lanner pull {0}")]
    NotPulled(String),
    #[error("{model} is not complete: {missing}\nhint: lanner pull {model}")]
    Incomplete { model: String, missing: Missing },
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl Source {
    /// The first of these that `model` names: a folder; a safetensors file; the built-in model; a
    /// short name; ORG/NAME in the cache, where the model must be complete.
    ///
    /// # Errors
    /// There is no such model, or it is not complete.
    pub fn find(model: Option<&str>, hub: &HubConfig) -> Result<Source, SourceError> {
        Source::locate(model, hub, Purpose::Load)
    }

    /// As [`find`](Source::find); only a load counts as a use of the model.
    ///
    /// # Errors
    /// Those of [`find`](Source::find).
    pub fn locate(model: Option<&str>, hub: &HubConfig, purpose: Purpose) -> Result<Source, SourceError> {
        let Some(model) = model else { return Ok(Source::builtin()) };
        let path = Path::new(model);
        if let Ok(resolved) = path.canonicalize() {
            return on_disk(path, resolved);
        }
        match Source::installed(model, hub, purpose) {
            Err(SourceError::Unknown(_)) if looks_like_path(model) => Err(SourceError::NoFolder(path.into())),
            found => found,
        }
    }

    /// The built-in model, or one in the cache by its short name or ORG/NAME; never a path.
    ///
    /// # Errors
    /// There is no such model, or it is not complete.
    pub fn installed(model: &str, hub: &HubConfig, purpose: Purpose) -> Result<Source, SourceError> {
        if model == BUILTIN.name {
            return Ok(Source::builtin());
        }
        let repo = repo(model).ok_or_else(|| SourceError::Unknown(model.into()))?;
        in_cache(model, &repo, hub, purpose)
    }

    fn builtin() -> Source {
        Source { name: BUILTIN.name.into(), alias: None, location: ModelLocation::Builtin }
    }
}

/// Whether a word of the command line names a model on this machine, or a short name.
pub fn is_model(word: &str, hub: &HubConfig) -> bool {
    let path = Path::new(word);
    let is_file = path.is_file() && path.extension().is_some_and(|end| end == "safetensors");
    let is_cached = |repo: &RepoName| hub.cache().is_ok_and(|cache| cache.repo(repo).folder.is_dir());
    is_file
        || path.join("config.json").is_file()
        || word == BUILTIN.name
        || catalog::look_up(word).is_some()
        || RepoName::parse(word).is_some_and(|repo| is_cached(&repo))
}

/// The repository of a short name or of ORG/NAME.
pub fn repo(model: &str) -> Option<RepoName> {
    catalog::look_up(model).or_else(|| RepoName::parse(model))
}

fn on_disk(path: &Path, resolved: PathBuf) -> Result<Source, SourceError> {
    let name = resolved.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned());
    if resolved.is_dir() {
        return Ok(Source { name, alias: None, location: ModelLocation::Folder(resolved) });
    }
    // The typed name: a link's target may be called by its hash.
    let name = path.file_name().map_or(name, |name| name.to_string_lossy().into_owned());
    match name.strip_suffix(".safetensors") {
        Some(stem) => {
            let location = ModelLocation::File(std::path::absolute(path).unwrap_or(resolved));
            Ok(Source { name: stem.into(), alias: None, location })
        }
        None => Err(SourceError::NotSafetensors(path.into())),
    }
}

fn in_cache(name: &str, repo: &RepoName, hub: &HubConfig, purpose: Purpose) -> Result<Source, SourceError> {
    let local = hub::check(&hub.cache()?, repo).map_err(|missing| match missing {
        Missing::Everything => SourceError::NotPulled(name.into()),
        Missing::Choice(error) => SourceError::Hub(HubError::Choice(error)),
        missing => SourceError::Incomplete { model: name.into(), missing },
    })?;
    if purpose == Purpose::Load {
        LastUsed(hub.uses.clone()).record(&repo.folder(), &local.commit);
    }
    let location =
        if local.path.is_dir() { ModelLocation::Folder(local.path) } else { ModelLocation::File(local.path) };
    let model = repo.model();
    let alias = (name != model).then(|| name.to_owned());
    Ok(Source { name: model, alias, location })
}

fn looks_like_path(model: &str) -> bool {
    model.starts_with(['/', '.', '~']) || model.matches('/').count() > 1
}
