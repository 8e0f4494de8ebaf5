//! The state of all routes: the loaded models, how others are loaded, and downloads.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use axum::extract::FromRef;
use store::Store;

use super::{
    Common, Server,
    models::{Engines, Loads, Names, Registry, Retention},
    openai::mcp::McpAccess,
};
use crate::{
    config::{ModelConfig, RegistryConfig},
    hub::HubConfig,
    image_url::ImageUrls,
    source::Source,
};

/// Cheap to clone; all clones are the same state.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

struct Shared {
    common: Arc<Common>,
    registry: Registry,
    names: Names,
    loads: Loads,
    engines: Engines,
    /// How to load models; a request names the model.
    config: ModelConfig,
    settings: RegistryConfig,
    pulling: Arc<Mutex<BTreeSet<String>>>,
    store: OnceLock<Store>,
    image_urls: OnceLock<ImageUrls>,
}

impl FromRef<AppState> for Arc<Common> {
    fn from_ref(state: &AppState) -> Arc<Common> {
        state.common().clone()
    }
}

/// Most concurrent pulls: each has its own threads and connections.
pub(super) const MAX_PULLS: usize = 4;

#[derive(Debug)]
pub enum PullRejected {
    AlreadyRunning,
    TooMany,
}

impl AppState {
    /// `server` is the default model.
    pub fn new(mut server: Server, mut config: ModelConfig, settings: RegistryConfig) -> AppState {
        let engines = Engines::default();
        // Counters and the memory account continue across models.
        config.options.metrics = server.engine().metrics().clone();
        server.engine = Some(engines.register(&server.model.engine));
        let common = server.common.clone();
        let names = Names::new(config.hub.clone(), settings.aliases.clone(), server.name().to_owned());
        let location = server.model.location.clone();
        let (name, alias) = (server.model.name.clone(), server.model.alias.clone());
        let source = location.map(|location| Source { name, alias, location });
        source.iter().for_each(|source| names.remember(source));
        names.set_default(server.name(), source);
        let registry = Registry::default();
        let retention = Retention { keep_alive: settings.keep_alive, pinned: settings.pin };
        let aliases = server.model.location.as_ref().map(|location| names.aliases_at(location));
        registry.replace_default(&registry.insert(server, aliases.unwrap_or_default(), retention));
        let (loads, pulling) = (Loads::default(), Arc::default());
        let (store, image_urls) = (OnceLock::new(), OnceLock::new());
        AppState(Arc::new(Shared {
            common,
            registry,
            names,
            loads,
            engines,
            config,
            settings,
            pulling,
            store,
            image_urls,
        }))
    }

    /// Keeps conversations and figures of requests here; later calls change nothing.
    pub fn set_store(&self, store: Store) {
        let _ = self.0.store.set(store);
    }

    pub fn store(&self) -> Option<&Store> {
        self.0.store.get()
    }

    /// Fetches images at URLs that requests name; later calls change nothing.
    pub fn set_image_urls(&self, image_urls: ImageUrls) {
        let _ = self.0.image_urls.set(image_urls);
    }

    /// `None`: no URL is fetched.
    pub fn image_urls(&self) -> Option<&ImageUrls> {
        self.0.image_urls.get()
    }

    /// Lets requests use the tools of these MCP servers; later calls change nothing.
    pub fn set_mcp(&self, access: McpAccess) {
        let _ = self.common().mcp.set(access);
    }

    /// State that all models share.
    pub fn common(&self) -> &Arc<Common> {
        &self.0.common
    }

    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub fn names(&self) -> &Names {
        &self.0.names
    }

    pub fn loads(&self) -> &Loads {
        &self.0.loads
    }

    pub fn engines(&self) -> &Engines {
        &self.0.engines
    }

    /// How models are loaded.
    pub fn config(&self) -> &ModelConfig {
        &self.0.config
    }

    /// Which models are loaded and for how long.
    pub fn settings(&self) -> &RegistryConfig {
        &self.0.settings
    }

    pub fn memory_limit(&self) -> Option<usize> {
        self.0.config.options.memory_limit
    }

    pub fn hub(&self) -> &HubConfig {
        &self.0.config.hub
    }

    /// Registers a pull of a repository, until the guard is dropped.
    ///
    /// # Errors
    /// The repository is being pulled already, or [`MAX_PULLS`] others are.
    pub fn begin_pull(&self, repo: String) -> Result<PullGuard, PullRejected> {
        let shared = self.0.pulling.clone();
        let mut pulling = lock(&shared);
        if pulling.contains(&repo) {
            return Err(PullRejected::AlreadyRunning);
        }
        if pulling.len() >= MAX_PULLS {
            return Err(PullRejected::TooMany);
        }
        pulling.insert(repo.clone());
        drop(pulling);
        Ok(PullGuard { pulling: shared, repo })
    }

    /// Stops loading and every engine: MLX crashes if the program ends while it computes.
    pub fn stop(&self) {
        self.common().mcp.get().into_iter().for_each(|access| access.servers.stop());
        self.0.loads.stop();
        self.0.engines.stop();
    }
}

/// Ends the registration of a pull when dropped.
pub struct PullGuard {
    pulling: Arc<Mutex<BTreeSet<String>>>,
    repo: String,
}

impl Drop for PullGuard {
    fn drop(&mut self) {
        lock(&self.pulling).remove(&self.repo);
    }
}

/// A panic elsewhere leaves the value usable.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
