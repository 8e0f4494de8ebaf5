//! Models on the Hugging Face hub, and the cache on disk that other tools share. Reads no
//! environment, prints nothing, loads nothing.

mod backoff;
mod cache;
mod check;
mod choose;
mod client;
mod download;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod index;
mod job;
mod last_used;
mod listing;
mod missing;
mod name;
mod pull;
mod remove;
mod scan;

use std::{path::PathBuf, time::Duration};

pub(crate) use self::client::redirect_target;
pub use self::{
    cache::HubCache,
    check::{LocalModel, check},
    error::{HubError, megabytes},
    job::{PullEvent, PullJob},
    last_used::LastUsed,
    missing::Missing,
    name::RepoName,
    pull::{Pulled, pull},
    remove::{Removal, plan_removal},
    scan::{CachedModel, describe_config, scan},
};

/// The hub, and the folder of the cache.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Root of the cache; `None`: there is no home folder.
    pub cache: Option<PathBuf>,
    /// Without a slash at the end.
    pub endpoint: String,
    pub token: Option<String>,
    /// Never use the network.
    pub offline: bool,
    pub proxy: Option<ureq::Proxy>,
    /// Folder of the records of when models were used.
    pub uses: Option<PathBuf>,
    /// Wait after a first transient failure; it doubles with each further one.
    pub backoff: Duration,
}

impl HubConfig {
    /// # Errors
    /// There is no home folder, and the environment names no other.
    pub fn cache(&self) -> Result<HubCache, HubError> {
        self.cache.clone().map(HubCache::new).ok_or(HubError::NoCache)
    }
}
