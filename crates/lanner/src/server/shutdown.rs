//! The moment at which the server stops waiting for running requests.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::watch;

use super::wire::error::ApiError;

/// Cheap to clone; all clones see it begin.
#[derive(Clone, Default)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// Requests that still run end with [`error`].
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    pub fn watch(&self) -> ShutdownWatch {
        ShutdownWatch(self.0.subscribe())
    }
}

pub struct ShutdownWatch(watch::Receiver<bool>);

impl ShutdownWatch {
    /// Waits until it has begun.
    pub async fn begun(&mut self) {
        if self.0.wait_for(|begun| *begun).await.is_err() {
            // Nobody is left who could begin it.
            std::future::pending::<()>().await;
        }
    }
}

pub fn error() -> ApiError {
    let message = "the server is shutting down before this request was answered; send it again later";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("shutting_down")
}

/// Answers requests whose response has not begun by then.
pub async fn until_shutdown(State(shutdown): State<Shutdown>, request: Request, next: Next) -> Response {
    let mut shutdown = shutdown.watch();
    tokio::select! {
        response = next.run(request) => response,
        () = shutdown.begun() => error().into_response(),
    }
}
