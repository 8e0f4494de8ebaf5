//! Downloads a model from the hub into the cache, several files at a time.

use std::{
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use super::{
    HubConfig,
    backoff::with_retries,
    cache::{HubCache, RepoCache},
    check::check,
    choose::{ModelFiles, WeightFiles, choose, is_companion, is_embedding_layer, name_in},
    client::Client,
    download::{Fetch, present_bytes},
    error::HubError,
    index::shards,
    job::{PullEvent, PullJob},
    listing::{Listing, RemoteFile},
    name::RepoName,
};

/// Files fetched at one time.
const PARALLEL: usize = 4;

/// A model that is complete in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    pub commit: String,
    /// Its folder, or its safetensors file if that was asked for: what `--model` takes.
    pub path: PathBuf,
}

/// Downloads the files of the model that are not in the cache.
///
/// # Errors
/// The hub refuses or fails, or a file cannot be written. Partial files stay for the next attempt.
pub fn pull(config: &HubConfig, repo: &RepoName, job: &PullJob) -> Result<Pulled, HubError> {
    let cache = config.cache()?;
    if config.offline {
        return offline(&cache, repo);
    }
    let client = Client::new(config);
    let listing = with_retries(config.backoff, job, || client.listing(repo))?;
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
    // Small files first: one of them is the index, which names the shards.
    let small = companions(repo, &listing, &chosen)?;
    remaining.store(small.iter().map(|file| file.size).sum(), Ordering::Relaxed);
    fetch_all(&fetch, &small)?;
    let weights = weights(repo, &listing, &chosen, &cache_of_repo)?;
    let (total, present) = (
        sum(&small) + sum(&weights),
        weights.iter().map(|file| present_bytes(&cache_of_repo, file)).sum::<u64>(),
    );
    job.report(PullEvent::Start {
        files: small.len() + weights.len(),
        present: sum(&small) + present,
        total,
    });
    remaining.store(sum(&weights) - present, Ordering::Relaxed);
    fetch_all(&fetch, &weights)?;
    // Last: until then the revision keeps naming the previous, complete snapshot.
    cache_of_repo.write_ref(repo.revision(), &listing.commit)?;
    pulled(&cache, &repo.at(&listing.commit))
}

fn offline(cache: &HubCache, repo: &RepoName) -> Result<Pulled, HubError> {
    let local =
        check(cache, repo).map_err(|missing| HubError::Offline { model: repo.to_string(), missing })?;
    Ok(Pulled { commit: local.commit, path: local.path })
}

/// Checks the download as loading does.
fn pulled(cache: &HubCache, repo: &RepoName) -> Result<Pulled, HubError> {
    let local = check(cache, repo);
    let local = local.map_err(|missing| HubError::Answer { repo: repo.id(), reason: missing.to_string() })?;
    Ok(Pulled { commit: local.commit, path: local.path })
}

fn companions(repo: &RepoName, listing: &Listing, chosen: &ModelFiles) -> Result<Vec<RemoteFile>, HubError> {
    let config = format!("{}config.json", chosen.folder);
    let wanted = |path: &String| match &chosen.weights {
        WeightFiles::Index(index) if path == index => true,
        _ if path.strip_prefix(&chosen.folder[..]).is_some_and(is_embedding_layer) => true,
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
            let text =
                ::files::read(&path, ::files::INDEX).map_err(|error| HubError::Read { path, error })?;
            let names = shards(&text).map_err(|reason| HubError::Answer { repo: repo.id(), reason })?;
            names.iter().map(|name| format!("{}{name}", chosen.folder)).collect()
        }
    };
    paths.iter().map(|path| listing.file(repo, path)).collect()
}

fn sum(files: &[RemoteFile]) -> u64 {
    files.iter().map(|file| file.size).sum()
}

/// Fetches files in parallel; the first failure stops all.
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
