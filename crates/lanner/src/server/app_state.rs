//! The state of all routes: the served model, which can be replaced, and the running engines.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use axum::extract::FromRef;
use engine::Engine;
use tokio::sync::oneshot;

use super::Server;
use crate::{config::ModelConfig, hub::HubConfig, loading::OpenError, model::Model};

/// Handlers get the [`Server`] that is current when their request arrives.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

struct Shared {
    current: RwLock<Arc<Server>>,
    /// How to load models; a request names the model.
    config: ModelConfig,
    /// The name to serve any model under, besides its own.
    name: Option<String>,
    engines: Engines,
    /// Whether a model is being loaded, and the thread of the last load.
    loading: AtomicBool,
    loader: Mutex<Option<JoinHandle<()>>>,
    /// Set when the program ends: no more loads.
    stopped: Arc<AtomicBool>,
    pulling: Arc<Mutex<BTreeSet<String>>>,
}

impl FromRef<AppState> for Arc<Server> {
    fn from_ref(state: &AppState) -> Arc<Server> {
        state.current()
    }
}

/// Another model is being loaded.
#[derive(Debug)]
pub struct Busy;

/// Most concurrent pulls: each has its own threads and connections.
pub(super) const MAX_PULLS: usize = 4;

#[derive(Debug)]
pub enum PullRejected {
    AlreadyRunning,
    TooMany,
}

impl AppState {
    pub fn new(mut server: Server, mut config: ModelConfig, name: Option<String>) -> AppState {
        let engines = Engines::default();
        // Counters continue across models.
        config.options.metrics = server.engine().metrics().clone();
        server.engine = Some(engines.register(&server.model.engine));
        AppState(Arc::new(Shared {
            current: RwLock::new(Arc::new(server)),
            config,
            name,
            engines,
            loading: AtomicBool::new(false),
            loader: Mutex::default(),
            stopped: Arc::default(),
            pulling: Arc::default(),
        }))
    }

    pub fn current(&self) -> Arc<Server> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn memory_limit(&self) -> Option<usize> {
        self.0.config.options.memory_limit
    }

    pub fn hub(&self) -> &HubConfig {
        &self.0.config.hub
    }

    /// Loads a model next to the served one, and serves it once it is ready; a failure changes
    /// nothing. The old model is dropped with its last request.
    ///
    /// # Errors
    /// [`Busy`]: another model is being loaded. The receiver gets the errors of the load.
    pub fn load(&self, model: String) -> Result<oneshot::Receiver<Result<Arc<Server>, OpenError>>, Busy> {
        let mut loader = lock(&self.0.loader);
        if self.0.stopped.load(Ordering::Relaxed) || self.0.loading.swap(true, Ordering::AcqRel) {
            return Err(Busy);
        }
        let (guard, (sender, receiver)) = (LoadGuard(self.clone()), oneshot::channel());
        // Continues if the client disconnects.
        *loader = Some(thread::spawn(move || {
            let result = guard.0.swap(model);
            // Released before the client knows, which may send the next request at once.
            drop(guard);
            let _ = sender.send(result);
        }));
        Ok(receiver)
    }

    fn swap(&self, model: String) -> Result<Arc<Server>, OpenError> {
        let config = ModelConfig { model: Some(model), ..self.0.config.clone() };
        let model = Model::open_unless(&config, &self.0.stopped)?;
        let mut server = self.current().with_model(model, self.0.name.clone());
        server.engine = Some(self.0.engines.register(&server.model.engine));
        let server = Arc::new(server);
        let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, server.clone());
        // Before the old one is dropped, which may wait for a step.
        drop(current);
        drop(old);
        Ok(server)
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
        self.0.stopped.store(true, Ordering::Relaxed);
        let loader = lock(&self.0.loader).take();
        if let Some(thread) = loader {
            let _ = thread.join();
        }
        self.0.engines.stop();
    }
}

/// Allows the next load when dropped.
struct LoadGuard(AppState);

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.0.loading.store(false, Ordering::Release);
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

/// Engines that may still compute; those of replaced models end with their last requests.
#[derive(Clone, Default)]
struct Engines(Arc<EnginesShared>);

#[derive(Default)]
struct EnginesShared {
    next: AtomicU64,
    running: Mutex<BTreeMap<u64, Engine>>,
}

impl Engines {
    fn register(&self, engine: &Engine) -> EngineGuard {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.running).insert(id, engine.clone());
        EngineGuard { engines: self.clone(), id }
    }

    fn stop(&self) {
        let running: Vec<Engine> = lock(&self.0.running).values().cloned().collect();
        running.iter().for_each(Engine::stop);
    }
}

/// Stops the engine when dropped, which frees its memory.
pub(super) struct EngineGuard {
    engines: Engines,
    id: u64,
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        let (engines, id) = (self.engines.clone(), self.id);
        // On another thread: stopping waits for the current step.
        thread::spawn(move || {
            let engine = lock(&engines.0.running).get(&id).cloned();
            engine.iter().for_each(Engine::stop);
            // Last: until then `Engines::stop` waits for it.
            lock(&engines.0.running).remove(&id);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
