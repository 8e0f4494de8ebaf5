//! Checks whether a model in the cache is complete. Reads the disk only, never the hub.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use safetensors::tensor::Metadata;

use super::{
    cache::HubCache,
    choose::{ChooseError, ModelFiles, WeightFiles, choose},
    index::shards,
    missing::Missing,
    name::RepoName,
};

/// Most bytes of a header; real ones have a few megabytes at most.
const MAX_HEADER: u64 = 100 << 20;

/// A complete model in the cache.
#[derive(Debug)]
pub struct LocalModel {
    pub commit: String,
    /// Its folder, or its one safetensors file if the folder has others too.
    pub path: PathBuf,
}

/// Finds the model in the cache and checks that it is complete.
///
/// # Errors
/// The first thing that is missing.
pub fn check(cache: &HubCache, repo: &RepoName) -> Result<LocalModel, Missing> {
    let cache = cache.repo(repo);
    let commit = cache.commit(repo.revision()).ok_or(Missing::Everything)?;
    let path = check_snapshot(&cache.snapshot(&commit), &repo.id(), repo.part.as_deref())?;
    Ok(LocalModel { commit, path })
}

/// Like [`check`], for one snapshot.
pub(super) fn check_snapshot(snapshot: &Path, repo: &str, part: Option<&str>) -> Result<PathBuf, Missing> {
    let paths = files(snapshot);
    let chosen = match choose(repo, part, &paths) {
        // An interrupted download: the small files come first.
        Err(ChooseError::NoWeights(_)) => return Err(Missing::File("*.safetensors".into())),
        chosen => chosen.map_err(Missing::Choice)?,
    };
    let config = format!("{}config.json", chosen.folder);
    if !snapshot.join(&config).is_file() {
        return Err(Missing::File(config));
    }
    for path in weight_paths(snapshot, &chosen)? {
        let file = snapshot.join(&path);
        if !file.is_file() {
            return Err(Missing::File(path));
        }
        if !is_whole(&file).unwrap_or(false) {
            return Err(Missing::Cut(path));
        }
    }
    Ok(match &chosen.weights {
        WeightFiles::Files(files)
            if files.len() == 1 && (part == Some(&files[0]) || has_others(&paths, &chosen)) =>
        {
            snapshot.join(&files[0])
        }
        _ if chosen.folder.is_empty() => snapshot.to_path_buf(),
        _ => snapshot.join(chosen.folder.trim_end_matches('/')),
    })
}

/// Sorted paths of all files, broken links included.
pub(super) fn files(snapshot: &Path) -> Vec<String> {
    fn walk(folder: &Path, prefix: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => walk(&entry.path(), &format!("{path}/"), found),
                _ => found.push(path),
            }
        }
    }
    let mut found = Vec::new();
    walk(snapshot, "", &mut found);
    found.sort();
    found
}

fn weight_paths(snapshot: &Path, chosen: &ModelFiles) -> Result<Vec<String>, Missing> {
    let path = match &chosen.weights {
        WeightFiles::Files(files) => return Ok(files.clone()),
        WeightFiles::Index(path) => path,
    };
    let wrong = |reason: String| Missing::Index { path: path.clone(), reason };
    let text =
        ::files::read(&snapshot.join(path), ::files::INDEX).map_err(|_| Missing::File(path.clone()))?;
    let names = shards(&text).map_err(wrong)?;
    Ok(names.iter().map(|name| format!("{}{name}", chosen.folder)).collect())
}

/// Whether the folder has other weights too, which the engine would load with the chosen ones.
fn has_others(paths: &[String], chosen: &ModelFiles) -> bool {
    let in_folder =
        |path: &&String| path.starts_with(&chosen.folder) && !path[chosen.folder.len()..].contains('/');
    paths.iter().filter(in_folder).filter(|path| path.ends_with(".safetensors")).count() > 1
}

fn is_whole(path: &Path) -> io::Result<bool> {
    let file = ::files::open(path)?;
    let length = file.metadata()?.len();
    has_stated_length(file, length)
}

/// Whether a safetensors file has the length that its header states.
pub(super) fn has_stated_length(mut file: impl Read, length: u64) -> io::Result<bool> {
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix)?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER || header > length.saturating_sub(8) {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    file.take(header).read_to_end(&mut bytes)?;
    let metadata: Metadata = serde_json::from_slice(&bytes)?;
    Ok((8 + header).checked_add(metadata.data_len() as u64) == Some(length))
}
