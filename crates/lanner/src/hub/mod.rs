//! Models of the Hugging Face hub: naming them, fetching them, and the cache that other tools share. Reads no
//! environment, prints nothing, loads nothing.

mod cache;
mod check;
mod choose;
mod client;
mod download;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod last_used;
mod listing;
mod name;
mod pull;
mod remove;
mod scan;

use std::{path::PathBuf, time::Duration};

pub use self::{
    cache::HubCache,
    check::{LocalModel, Missing, check},
    error::{HubError, megabytes},
    last_used::LastUsed,
    name::RepoName,
    pull::{PullEvent, PullJob, Pulled, pull},
    remove::{Removal, plan_removal},
    scan::{CachedModel, describe_config, scan},
};

/// Where models come from and where they are kept.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// `None` if the system has no place for it.
    pub cache: Option<PathBuf>,
    /// Without a slash at the end.
    pub endpoint: String,
    pub token: Option<String>,
    /// Never touch the network.
    pub offline: bool,
    pub proxy: Option<ureq::Proxy>,
    /// Where it is recorded when models were used.
    pub uses: Option<PathBuf>,
    /// How long to wait after a first failure; twice as long after each further one.
    pub backoff: Duration,
}

impl HubConfig {
    /// # Errors
    /// The system has no home folder and the environment names no other place.
    pub fn cache(&self) -> Result<HubCache, HubError> {
        self.cache.clone().map(HubCache::new).ok_or(HubError::NoCache)
    }
}
