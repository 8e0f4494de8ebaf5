//! The HTTP server: routes, limits and shutdown. `openai` and `anthropic` have the request and
//! response bodies, `completion` runs them.

mod active_requests;
mod admin;
mod anthropic;
mod app_state;
mod auth;
mod clock;
mod completion;
mod connections;
mod cors;
mod embedding;
mod embedding_routes;
mod format;
mod handlers;
pub(crate) mod history;
mod idempotency;
mod images;
mod ingress;
mod key_limits;
mod metrics;
mod model_routes;
mod models;
mod ollama;
pub mod openai;
mod openapi;
mod page;
mod paths;
pub mod preparation;
mod protocol;
mod pulling;
mod request_log;
mod responses;
mod schema;
mod served_model;
mod shutdown;
mod tenant;
mod tokens;
mod utility;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router, middleware,
    routing::{delete, get, post},
};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};
use tower_http::catch_panic::CatchPanicLayer;

pub(crate) use self::completion::miss_context;
pub use self::{
    app_state::AppState,
    clock::unix_seconds,
    openai::mcp::McpAccess,
    served_model::{Common, Server},
};
use self::{auth::Auth, connections::Connections, preparation::Preparation};
use crate::{config::ServeConfig, terminal::say};

/// How long running requests may continue after the first Ctrl-C.
const GRACE: Duration = Duration::from_secs(5);
/// How long responses may take to end with an error after that.
const ABORT_GRACE: Duration = Duration::from_secs(1);

pub fn router(state: AppState, config: &ServeConfig) -> Router {
    let auth = Auth::new(config);
    let preparation = Preparation::new(config.body_limit, config.timeouts.body, state.memory_limit());
    let (shutdown, store) = (state.common().shutdown.clone(), state.store().cloned());
    let admin = Router::new()
        .route("/v1/models/load", post(admin::load))
        .route("/v1/models/unload", post(admin::unload))
        .route("/v1/models/pull", post(admin::pull))
        .route("/v1/cache", get(handlers::cache).delete(handlers::clear_cache))
        .route("/v1/history", get(history::list))
        .route("/v1/history/{id}", get(history::read).put(history::put).delete(history::delete))
        .merge(ollama::admin_routes());
    let admin = if config.admin { admin } else { admin.layer(middleware::from_fn(auth::no_admin)) };
    let routes = Router::new()
        .route("/health", get(handlers::health))
        .route("/metrics", get(utility::metrics))
        .route("/v1/models", get(model_routes::models))
        .route("/v1/models/{*id}", get(model_routes::model))
        .route("/v1/chat/completions", post(handlers::chat_completions))
        .route("/v1/completions", post(handlers::completions))
        .route("/v1/embeddings", post(embedding_routes::embeddings))
        .route("/v1/rerank", post(embedding_routes::rerank))
        .route("/v2/rerank", post(embedding_routes::rerank))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::read).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/requests/{id}", delete(utility::cancel))
        .route("/v1/mcp", get(utility::mcp_servers))
        .route("/v1/stats", get(utility::stats))
        .route("/v1/stats/history", get(history::stats))
        .route("/version", get(utility::version))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::tokenizer_info))
        .route("/apply-template", post(tokens::apply_template))
        .route("/", get(page::index))
        .route("/page/{file}", get(page::file))
        .route("/openapi.json", get(openapi::openapi_json))
        .route("/docs", get(openapi::docs))
        .merge(ollama::routes())
        .merge(admin)
        .fallback(handlers::unknown_route)
        .method_not_allowed_fallback(handlers::wrong_method)
        .with_state(state)
        .layer(Extension(Arc::new(preparation)))
        .layer(middleware::from_fn_with_state(shutdown, shutdown::until_shutdown))
        .layer(middleware::from_fn_with_state(Arc::new(auth), auth::authorize))
        .layer(CatchPanicLayer::custom(auth::panicked));
    let routes = ingress::around(routes, store);
    // Outermost: a preflight request has no API key, and errors are readable for pages too.
    match cors::layer(&config.cors_origins) {
        Some(cors) => routes.layer(cors),
        None => routes,
    }
}

/// Serves until Ctrl-C or SIGTERM; then accepts no new connections and gives running requests
/// [`GRACE`]. Requests that run after that, or after a second Ctrl-C, end with an error.
///
/// # Errors
/// Signals cannot be received.
pub async fn serve(listener: TcpListener, state: AppState, config: &ServeConfig) -> std::io::Result<()> {
    let (mut signals, shutdown) = (Signals::new()?, state.common().shutdown.clone());
    let expiry = tokio::spawn(models::unload_expired(state.registry().clone()));
    let connections = Connections::new(router(state, config), config);
    let timeouts = tokio::spawn(connections.clone().enforce_timeouts());
    tokio::select! {
        () = connections.accept(listener) => {}
        () = signals.next() => {}
    }
    connections.close();
    tokio::select! {
        () = connections.ended() => {}
        () = grace_period(&mut signals) => {
            shutdown.begin();
            let _ = timeout(ABORT_GRACE, connections.ended()).await;
        }
    }
    timeouts.abort();
    expiry.abort();
    Ok(())
}

async fn grace_period(signals: &mut Signals) {
    // Prints nothing if no request runs.
    tokio::time::sleep(Duration::from_millis(100)).await;
    say("lanner: finishing running requests; Ctrl-C again stops at once");
    let _ = timeout(GRACE, signals.next()).await;
}

/// Ctrl-C and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
