//! Loads of models: by the names in requests, and by the admin routes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use axum::http::StatusCode;
use futures_util::{FutureExt, future::Shared};
use tokio::sync::oneshot;

use super::{
    lease::ModelLease,
    names::{DEFAULT, Wanted, untagged},
    registry::{LoadedModel, Retention},
};
use crate::{
    config::ModelConfig,
    keep_alive::KeepAlive,
    server::{
        Server,
        app_state::{AppState, lock},
        openai::error::ApiError,
        shutdown,
    },
    source::{ModelLocation, Purpose, Source},
};

type LoadResult = Result<ModelLease, ApiError>;

/// Loads that run or wait.
#[derive(Default)]
pub struct Loads {
    /// Held by the load that runs.
    turn: Mutex<()>,
    /// Whether a load by an admin route runs or waits.
    by_admin: AtomicBool,
    /// By the names that requests gave; requests with one name share a load.
    by_name: Mutex<BTreeMap<String, Shared<oneshot::Receiver<LoadResult>>>>,
    /// The model that is being loaded.
    current: Mutex<Option<ModelLocation>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Set when the program ends: no more loads.
    pub(super) stopped: Arc<AtomicBool>,
}

/// A load by an admin route is still running.
#[derive(Debug)]
pub struct Busy;

/// Fields of `POST /v1/models/load`.
pub struct LoadOptions {
    /// In the words of `--model`.
    pub model: String,
    /// Whether it becomes the default model and the former default is unloaded.
    pub replace: bool,
    pub keep_alive: Option<KeepAlive>,
    pub pin: Option<bool>,
}

impl Loads {
    /// The model that is being loaded.
    pub fn current(&self) -> Option<ModelLocation> {
        lock(&self.current).clone()
    }

    /// Waits for the load that runs; later ones fail.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Runs a load on a thread that [`stop`](Loads::stop) waits for.
    pub fn spawn(&self, load: impl FnOnce() + Send + 'static) {
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread::spawn(load));
    }
}

impl AppState {
    /// The model of this name, or the default one; it is loaded if it is on this machine. Loading
    /// continues if the client disconnects.
    ///
    /// # Errors
    /// 404: there is no such model. 503: there is no room. Others: it cannot be loaded.
    pub async fn lease(&self, name: Option<&str>) -> LoadResult {
        match self.loaded(name) {
            Some(lease) => Ok(lease),
            None => {
                let (name, wanted) = self.wanted(name)?;
                let load = self.load_shared(name, wanted);
                load.await.unwrap_or_else(|_| Err(internal("loading ended without a result")))
            }
        }
    }

    /// The model of this name, or the default one, if it is loaded.
    pub fn loaded(&self, name: Option<&str>) -> Option<ModelLease> {
        self.registry().find(self.names().key(name))
    }

    /// The model that [`loaded`](AppState::loaded) leases, without counting as a use of it.
    pub fn find_loaded(&self, name: Option<&str>) -> Option<LoadedModel> {
        self.registry().look(self.names().key(name))
    }

    fn wanted(&self, name: Option<&str>) -> Result<(String, Wanted), ApiError> {
        let name = name.unwrap_or(DEFAULT);
        let spellings = [name, untagged(name)];
        let known = spellings.iter().find_map(|name| Some((*name, self.names().wanted(name)?)));
        let Some((known, wanted)) = known else { return Err(self.unknown_model(name)) };
        let may_load =
            self.settings().load_by_name || matches!(wanted, Wanted::Known { is_default: true, .. });
        if !may_load {
            let message =
                format!("the model `{name}` is not loaded, and this server loads none for requests");
            return Err(not_found(message));
        }
        Ok((known.to_owned(), wanted))
    }

    pub fn unknown_model(&self, name: &str) -> ApiError {
        let own = self.names().default_name();
        not_found(format!("the model `{name}` does not exist; this server has `{own}`"))
    }

    fn load_shared(&self, name: String, wanted: Wanted) -> Shared<oneshot::Receiver<LoadResult>> {
        let mut by_name = lock(&self.loads().by_name);
        if let Some(load) = by_name.get(&name) {
            return load.clone();
        }
        let (sender, receiver) = oneshot::channel();
        let load = receiver.shared();
        by_name.insert(name.clone(), load.clone());
        let ended = NamedLoad { state: self.clone(), name };
        self.loads().spawn(move || {
            let result = ended.state.load_wanted(&ended.name, &wanted);
            // Released before the clients know: later requests find the model, or try again.
            drop(ended);
            let _ = sender.send(result);
        });
        load
    }

    fn load_wanted(&self, name: &str, wanted: &Wanted) -> LoadResult {
        let _turn = lock(&self.loads().turn);
        let source =
            self.names().find(wanted, Purpose::Load).map_err(|error| ApiError::from_open(&error.into()))?;
        let names: Vec<String> = [name.to_owned()].into_iter().filter(|name| name != DEFAULT).collect();
        if let Some(lease) = self.registry().find_at(&source.location, &names) {
            return Ok(lease);
        }
        let is_default = self.names().is_default(&source.location);
        let settings = self.settings();
        let pinned = is_default && settings.pin;
        let retention = Retention { keep_alive: settings.keep_alive, pinned };
        let lease = self.load_source(source, is_default, names, retention)?;
        if is_default {
            self.registry().replace_default(&lease);
        }
        Ok(lease)
    }

    /// Loads a model for an admin route. A failure changes nothing. A replaced model is unloaded
    /// after its last request.
    ///
    /// # Errors
    /// [`Busy`]. The receiver gets the errors of the load.
    pub fn load(&self, options: LoadOptions) -> Result<oneshot::Receiver<LoadResult>, Busy> {
        let loads = self.loads();
        if loads.stopped.load(Ordering::Relaxed) || loads.by_admin.swap(true, Ordering::AcqRel) {
            return Err(Busy);
        }
        let (admin, (sender, receiver)) = (AdminLoad(self.clone()), oneshot::channel());
        // Continues if the client disconnects.
        loads.spawn(move || {
            let result = admin.0.load_for_admin(&options);
            // Released before the client knows, which may send the next request at once.
            drop(admin);
            let _ = sender.send(result);
        });
        Ok(receiver)
    }

    fn load_for_admin(&self, options: &LoadOptions) -> LoadResult {
        let _turn = lock(&self.loads().turn);
        let hub = self.hub();
        let source = Source::find(Some(&options.model), hub);
        let source = source.map_err(|error| ApiError::from_open(&error.into()))?;
        let settings = self.settings();
        let usual = match options.replace {
            true => self.registry().default_model().and_then(|old| self.registry().retention(&old)),
            false => None,
        };
        let usual = usual.unwrap_or(Retention { keep_alive: settings.keep_alive, pinned: false });
        let retention = Retention {
            keep_alive: options.keep_alive.unwrap_or(usual.keep_alive),
            pinned: options.pin.unwrap_or(usual.pinned),
        };
        if !options.replace
            && let Some(lease) = self.registry().find_at(&source.location, &[])
        {
            self.registry().set_retention(&lease, retention);
            return Ok(lease);
        }
        let lease = self.load_source(source.clone(), options.replace, vec![], retention)?;
        if options.replace {
            self.names().set_default(lease.name(), Some(source));
            // Dropped here, which may wait for a step.
            drop(self.registry().replace_default(&lease));
        }
        Ok(lease)
    }

    /// Loads a model beside the others.
    fn load_source(
        &self,
        source: Source,
        as_default: bool,
        names: Vec<String>,
        retention: Retention,
    ) -> LoadResult {
        if self.loads().stopped.load(Ordering::Relaxed) {
            return Err(shutdown::error());
        }
        *lock(&self.loads().current) = Some(source.location.clone());
        let config = self.config_for(as_default);
        let model = self.open_in_room(&source, &config, as_default);
        *lock(&self.loads().current) = None;
        let model = model?;
        self.names().remember(&source);
        let names = [names, self.names().aliases_at(&source.location)].concat();
        let name = self.settings().name.clone().filter(|_| as_default);
        let mut server = Server::of(self.common().clone(), model, name);
        server.engine = Some(self.engines().register(&server.model.engine));
        Ok(self.registry().insert(server, names, retention))
    }

    /// Drafters and the syntax of tool calls are given for one model.
    fn config_for(&self, as_default: bool) -> ModelConfig {
        let config = self.config().clone();
        match as_default {
            true => config,
            false => ModelConfig { tool_dialect: None, ngram_table: None, draft_model: None, ..config },
        }
    }
}

/// Ends the sharing of a load when dropped.
struct NamedLoad {
    state: AppState,
    name: String,
}

impl Drop for NamedLoad {
    fn drop(&mut self) {
        let ended = lock(&self.state.loads().by_name).remove(&self.name);
        // After the lock is released: it may hold the last lease.
        drop(ended);
    }
}

/// Allows the next load by an admin route when dropped.
struct AdminLoad(AppState);

impl Drop for AdminLoad {
    fn drop(&mut self) {
        self.0.loads().by_admin.store(false, Ordering::Release);
    }
}

fn not_found(message: String) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found")
}

fn internal(message: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}
