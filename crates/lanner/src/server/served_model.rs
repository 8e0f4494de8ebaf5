//! A loaded model as requests use it, and what all models of a server share.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicUsize},
    time::Instant,
};

use engine::{Engine, Metrics};

use super::{
    active_requests::ActiveRequests,
    clock::unix_seconds,
    idempotency::IdempotencyStore,
    metrics::OutcomeCounts,
    models::EngineGuard,
    openai::{mcp::McpAccess, responses::store::ResponseStore},
    shutdown::Shutdown,
};
use crate::model::Model;

/// Most bytes of answers stored for their idempotency keys, of all models.
const IDEMPOTENCY_BUDGET: usize = 64 << 20;

/// What all models of a server share.
pub struct Common {
    pub(super) started: Instant,
    /// `started` in seconds since the Unix epoch.
    pub(super) started_at: u64,
    /// Choices being generated now.
    pub(super) running: Arc<AtomicUsize>,
    pub(super) active: ActiveRequests,
    pub(super) requests: Arc<OutcomeCounts>,
    pub(super) responses: Arc<ResponseStore>,
    pub(super) idempotency: IdempotencyStore,
    pub(super) shutdown: Shutdown,
    /// Servers whose tools requests may use; none without `--mcp`.
    pub(super) mcp: OnceLock<McpAccess>,
    /// Of all engines.
    pub(super) metrics: Arc<Metrics>,
}

/// A loaded model. A request keeps the one with which it began, even if that is unloaded.
pub struct Server {
    pub(super) common: Arc<Common>,
    pub(super) model: Arc<Model>,
    /// Names that requests may use for the model; responses have the first.
    pub(super) names: Vec<String>,
    /// When this model was ready, in seconds since the Unix epoch.
    pub(super) created: u64,
    /// Stops the engine once no request uses this model.
    pub(super) engine: Option<EngineGuard>,
}

impl Common {
    fn new(metrics: Arc<Metrics>) -> Common {
        Common {
            started: Instant::now(),
            started_at: unix_seconds(),
            running: Arc::default(),
            active: ActiveRequests::default(),
            requests: Arc::default(),
            responses: Arc::default(),
            idempotency: IdempotencyStore::new(IDEMPOTENCY_BUDGET),
            shutdown: Shutdown::default(),
            mcp: OnceLock::new(),
            metrics,
        }
    }
}

impl Server {
    /// The first model of a server, which responses call `name` if that is given.
    pub fn new(model: Model, name: Option<String>) -> Server {
        let common = Common::new(model.engine.metrics().clone());
        Server::of(Arc::new(common), model, name)
    }

    /// Another model of the same server.
    pub(super) fn of(common: Arc<Common>, model: Model, name: Option<String>) -> Server {
        let own = [Some(model.name.clone()), model.alias.clone()];
        Server {
            common,
            names: name.into_iter().chain(own.into_iter().flatten()).collect(),
            model: Arc::new(model),
            created: unix_seconds(),
            engine: None,
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.model.engine
    }

    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// The same for the model when it is loaded again; another one may be served under its name.
    pub(super) fn identity(&self) -> String {
        format!("{:?} {}", self.model.location, self.model.name)
    }
}
