//! The HTTP server: routes, limits and shutdown. What requests mean is in `wire`, how they run in `answer`.

mod admin;
mod answer;
mod guard;
mod handlers;
mod host;
mod metrics;
mod replay;
pub mod wire;

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{get, post},
    serve::ListenerExt,
};
use engine::Engine;
use tokio::net::TcpListener;
use tower_http::catch_panic::CatchPanicLayer;

pub use self::host::Host;
use self::{guard::Guard, host::KeptEngine, metrics::Requests, replay::Replays};
use crate::{config::ServeConfig, model::Model, terminal::say};

/// Most memory that answers kept for their idempotency keys take, in bytes.
const REPLAY_BUDGET: usize = 64 << 20;
/// How long running requests may go on after the first Ctrl-C.
const GRACE: Duration = Duration::from_secs(5);

/// What every handler sees: a model being served. A handler keeps the one that it began with.
pub struct Server {
    model: Arc<Model>,
    /// Names under which requests may ask for the model; the first is the one we answer with.
    names: Vec<String>,
    started: Instant,
    /// The same in seconds since the Unix epoch.
    started_at: u64,
    /// When this model was ready, in seconds since the Unix epoch.
    created: u64,
    /// Choices being generated now.
    running: Arc<AtomicUsize>,
    requests: Arc<Requests>,
    replays: Replays,
    /// Keeps the engine until nobody needs this model.
    engine: Option<KeptEngine>,
}

impl Server {
    pub fn new(model: Model, name: Option<String>) -> Server {
        let names = names(&model, name);
        Server {
            model: Arc::new(model),
            names,
            started: Instant::now(),
            started_at: unix_seconds(),
            created: unix_seconds(),
            running: Arc::default(),
            requests: Arc::default(),
            replays: Replays::new(REPLAY_BUDGET),
            engine: None,
        }
    }

    /// Another model in the same place.
    fn with_model(&self, model: Model, name: Option<String>) -> Server {
        Server {
            started: self.started,
            started_at: self.started_at,
            running: self.running.clone(),
            requests: self.requests.clone(),
            ..Server::new(model, name)
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.model.engine
    }

    pub fn name(&self) -> &str {
        &self.names[0]
    }
}

fn names(model: &Model, name: Option<String>) -> Vec<String> {
    let own = [Some(model.name.clone()), model.alias.clone(), Some("default".into())];
    name.into_iter().chain(own.into_iter().flatten()).collect()
}

pub fn router(host: Host, config: &ServeConfig) -> Router {
    let guard = Guard::new(config.address.ip(), config.allowed_hosts.clone(), config.api_key.clone());
    Router::new()
        .route("/health", get(handlers::health))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/models", get(handlers::models))
        .route("/v1/models/{*id}", get(handlers::model))
        .route("/v1/models/load", post(admin::load))
        .route("/v1/models/pull", post(admin::pull))
        .route("/v1/cache", get(handlers::cache).delete(handlers::clear_cache))
        .route("/v1/chat/completions", post(handlers::chat_completions))
        .route("/v1/completions", post(handlers::completions))
        .fallback(handlers::unknown_route)
        .method_not_allowed_fallback(handlers::wrong_method)
        .with_state(host)
        .layer(DefaultBodyLimit::max(config.body_limit))
        .layer(middleware::from_fn_with_state(Arc::new(guard), guard::guard))
        .layer(CatchPanicLayer::custom(guard::panicked))
}

/// Answers until Ctrl-C (or SIGTERM); then takes no new connections and gives running requests [`GRACE`].
///
/// # Errors
/// The listening socket failed.
pub async fn serve(listener: TcpListener, router: Router) -> std::io::Result<()> {
    // Tokens are small packets; waiting to fill bigger ones only delays them.
    let listener = listener.tap_io(|stream| _ = stream.set_nodelay(true));
    let graceful = axum::serve(listener, router).with_graceful_shutdown(asked_to_stop());
    tokio::select! {
        result = graceful => result,
        () = out_of_patience() => Ok(()),
    }
}

async fn out_of_patience() {
    asked_to_stop().await;
    // Nothing to say when nothing runs.
    tokio::time::sleep(Duration::from_millis(100)).await;
    say("lanner: finishing running requests; Ctrl-C again stops at once");
    tokio::select! {
        () = tokio::time::sleep(GRACE) => {}
        () = asked_to_stop() => {}
    }
}

async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    // Without a handler the signals keep their default effect, which is to end the program.
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
