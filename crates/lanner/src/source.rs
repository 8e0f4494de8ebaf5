//! What `--model` names: a folder, a file, a downloaded model or the built-in one. Nothing is downloaded here.

use std::path::{Path, PathBuf};

use crate::{
    builtin::BUILTIN,
    catalog,
    hub::{self, HubConfig, HubError, LastUsed, Missing, RepoName},
};

/// A model that is there, and what to call it.
#[derive(Debug)]
pub struct Source {
    pub name: String,
    /// What it was asked for as, if that is not its name.
    pub alias: Option<String>,
    pub location: ModelLocation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelLocation {
    Builtin,
    Folder(PathBuf),
    /// The only weights; config.json and the tokenizer lie beside it.
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("there is no model folder {}", .0.display())]
    NoFolder(PathBuf),
    #[error("{} is no safetensors file; --model takes a folder, a safetensors file, ORG/NAME or a short name", .0.display())]
    OddFile(PathBuf),
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
    /// Finds what `model` names, by these rules, the first that fits: a folder on disk; a safetensors file on disk; the
    /// built-in model's name; a short name; ORG/NAME in the cache, where it must be complete.
    ///
    /// # Errors
    /// One sentence that says what was tried, or what is missing.
    pub fn find(model: Option<&str>, hub: &HubConfig) -> Result<Source, SourceError> {
        let Some(model) = model else { return Ok(Source::builtin()) };
        let path = Path::new(model);
        if let Ok(resolved) = path.canonicalize() {
            return on_disk(path, resolved);
        }
        if model == BUILTIN.name {
            return Ok(Source::builtin());
        }
        match repo(model) {
            Some(repo) => in_cache(model, &repo, hub),
            None if looks_like_path(model) => Err(SourceError::NoFolder(path.into())),
            None => Err(SourceError::Unknown(model.into())),
        }
    }

    fn builtin() -> Source {
        Source { name: BUILTIN.name.into(), alias: None, location: ModelLocation::Builtin }
    }
}

/// The repository that a short name or ORG/NAME means.
pub fn repo(model: &str) -> Option<RepoName> {
    catalog::look_up(model).or_else(|| RepoName::parse(model))
}

fn on_disk(asked: &Path, resolved: PathBuf) -> Result<Source, SourceError> {
    let name = resolved.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned());
    if resolved.is_dir() {
        return Ok(Source { name, alias: None, location: ModelLocation::Folder(resolved) });
    }
    // As it was asked for: a link's name says what the file is, what it links to may be a mere hash.
    let name = asked.file_name().map_or(name, |name| name.to_string_lossy().into_owned());
    match name.strip_suffix(".safetensors") {
        Some(stem) => {
            let location = ModelLocation::File(std::path::absolute(asked).unwrap_or(resolved));
            Ok(Source { name: stem.into(), alias: None, location })
        }
        None => Err(SourceError::OddFile(asked.into())),
    }
}

fn in_cache(asked: &str, repo: &RepoName, hub: &HubConfig) -> Result<Source, SourceError> {
    let local = hub::check(&hub.cache()?, repo).map_err(|missing| match missing {
        Missing::Everything => SourceError::NotPulled(asked.into()),
        Missing::Choice(error) => SourceError::Hub(HubError::Choice(error)),
        missing => SourceError::Incomplete { model: asked.into(), missing },
    })?;
    LastUsed(hub.uses.clone()).record(&repo.folder(), &local.commit);
    let location =
        if local.path.is_dir() { ModelLocation::Folder(local.path) } else { ModelLocation::File(local.path) };
    let name = repo.model();
    let alias = (asked != name).then(|| asked.to_owned());
    Ok(Source { name, alias, location })
}

fn looks_like_path(model: &str) -> bool {
    model.starts_with(['/', '.', '~']) || model.matches('/').count() > 1
}
