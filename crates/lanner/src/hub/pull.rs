//! A whole model from the hub into the cache: what to fetch, several files at a time.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use serde::Deserialize;

use super::{
    HubConfig,
    cache::{HubCache, RepoCache},
    check::check,
    choose::{ModelFiles, WeightFiles, choose, is_companion, name_in},
    client::{Client, FetchError},
    download::{Backoff, Fetch, present},
    error::HubError,
    listing::{Listing, RemoteFile},
    name::{RepoName, is_safe_path},
};

/// Files fetched at one time.
const PARALLEL: usize = 4;

/// What a pull tells while it runs, and whether it still should.
pub struct PullJob<'a> {
    pub report: &'a (dyn Fn(PullEvent) + Sync),
    pub cancelled: &'a AtomicBool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PullEvent {
    /// What is to come; `present` bytes of `total` lie in the cache.
    Start {
        files: usize,
        present: u64,
        total: u64,
    },
    File {
        path: String,
        completed: u64,
        total: u64,
    },
    /// A failure that may pass is waited out.
    Waiting {
        seconds: f64,
        reason: String,
    },
}

/// A model that is complete in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    pub commit: String,
    /// Its folder, or its safetensors file if that was asked for: what `--model` takes.
    pub path: PathBuf,
}

impl PullJob<'_> {
    pub fn report(&self, event: PullEvent) {
        (self.report)(event);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Fetches what of the model is not in the cache yet.
///
/// # Errors
/// The hub does not have it or does not give it, or it cannot be written. What has come is kept for the next time.
pub fn pull(config: &HubConfig, repo: &RepoName, job: &PullJob) -> Result<Pulled, HubError> {
    let cache = config.cache()?;
    if config.offline {
        return offline(&cache, repo);
    }
    let client = Client::new(config);
    let listing = with_retries(config, job, || client.listing(repo))?;
    let chosen = choose(&repo.id(), repo.part.as_deref(), &listing.paths())?;
    let cache_of_repo = cache.repo(repo);
    let remaining = AtomicU64::new(0);
    let fetch = Fetch {
        client: &client,
        cache: &cache_of_repo,
        repo,
        commit: &listing.commit,
        job,
        backoff: config.backoff,
        remaining: &remaining,
    };
    // Small ones first: the index among them says which shards there are.
    let small = companions(repo, &listing, &chosen)?;
    remaining.store(small.iter().map(|file| file.size).sum(), Ordering::Relaxed);
    fetch_all(&fetch, &small)?;
    let weights = weights(repo, &listing, &chosen, &cache_of_repo)?;
    let (total, held) =
        (sum(&small) + sum(&weights), weights.iter().map(|file| present(&cache_of_repo, file)).sum::<u64>());
    job.report(PullEvent::Start { files: small.len() + weights.len(), present: sum(&small) + held, total });
    remaining.store(sum(&weights) - held, Ordering::Relaxed);
    fetch_all(&fetch, &weights)?;
    // Last, so that until then the revision stands for what was whole before.
    cache_of_repo.write_ref(repo.revision(), &listing.commit)?;
    pulled(&cache, &repo.at(&listing.commit))
}

fn offline(cache: &HubCache, repo: &RepoName) -> Result<Pulled, HubError> {
    let local =
        check(cache, repo).map_err(|missing| HubError::Offline { model: repo.to_string(), missing })?;
    Ok(Pulled { commit: local.commit, path: local.path })
}

/// What is whole now must pass the test that loading it makes.
fn pulled(cache: &HubCache, repo: &RepoName) -> Result<Pulled, HubError> {
    let local = check(cache, repo);
    let local = local.map_err(|missing| HubError::Answer { repo: repo.id(), reason: missing.to_string() })?;
    Ok(Pulled { commit: local.commit, path: local.path })
}

fn companions(repo: &RepoName, listing: &Listing, chosen: &ModelFiles) -> Result<Vec<RemoteFile>, HubError> {
    let config = format!("{}config.json", chosen.folder);
    let wanted = |path: &String| match &chosen.weights {
        WeightFiles::Index(index) if path == index => true,
        _ => name_in(path, &chosen.folder).is_some_and(is_companion),
    };
    let paths = listing.paths();
    if !paths.contains(&config) {
        return Err(HubError::NoFile { repo: repo.id(), file: config });
    }
    paths.iter().filter(|path| wanted(path)).map(|path| listing.file(repo, path)).collect()
}

fn weights(
    repo: &RepoName,
    listing: &Listing,
    chosen: &ModelFiles,
    cache: &RepoCache,
) -> Result<Vec<RemoteFile>, HubError> {
    let paths = match &chosen.weights {
        WeightFiles::Files(files) => files.clone(),
        WeightFiles::Index(index) => {
            let path = cache.snapshot(&listing.commit).join(index);
            let text = fs::read(&path).map_err(|error| HubError::Read { path, error })?;
            let names = shards(&text).map_err(|reason| HubError::Answer { repo: repo.id(), reason })?;
            names.iter().map(|name| format!("{}{name}", chosen.folder)).collect()
        }
    };
    paths.iter().map(|path| listing.file(repo, path)).collect()
}

/// File names in an index.
///
/// # Errors
/// It is not an index, or names a file outside its folder.
pub fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|error| format!("its index: {error}"))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| !is_safe_path(name)) {
        Some(name) => {
            let name: String = name.chars().take(200).flat_map(char::escape_debug).collect();
            Err(format!("its index names the file `{name}`, which is not in its folder"))
        }
        None => Ok(names),
    }
}

fn sum(files: &[RemoteFile]) -> u64 {
    files.iter().map(|file| file.size).sum()
}

/// Fetches the files, some at a time; the first failure ends them all.
fn fetch_all(fetch: &Fetch, files: &[RemoteFile]) -> Result<(), HubError> {
    let (next, failed) = (Mutex::new(files.iter()), AtomicBool::new(false));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let Some(file) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
            fetch.file(file).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL.min(files.len())).map(|_| scope.spawn(work)).collect();
        let join = |worker: thread::ScopedJoinHandle<Result<(), HubError>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let results: Vec<_> = workers.into_iter().map(join).collect();
        results.into_iter().collect()
    })
}

fn with_retries<T>(
    config: &HubConfig,
    job: &PullJob,
    ask: impl Fn() -> Result<T, FetchError>,
) -> Result<T, HubError> {
    let mut backoff = Backoff::new(config.backoff);
    loop {
        if job.is_cancelled() {
            return Err(HubError::Cancelled);
        }
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(FetchError::Permanent(error)) => return Err(error),
            Err(FetchError::Transient { error, wait }) => backoff.wait(error, wait, false, job)?,
        }
    }
}
