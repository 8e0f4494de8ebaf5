//! The signal that ends running requests.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::watch;

use super::openai::error::ApiError;

/// Cheap to clone; all clones see the signal.
#[derive(Clone, Default)]
pub(super) struct Shutdown(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// Ends running requests with [`error`].
    pub(super) fn begin(&self) {
        self.0.send_replace(true);
    }

    pub(super) fn watch(&self) -> ShutdownWatch {
        ShutdownWatch(self.0.subscribe())
    }
}

pub(super) struct ShutdownWatch(watch::Receiver<bool>);

impl ShutdownWatch {
    /// Waits for the signal.
    pub(super) async fn begun(&mut self) {
        if self.0.wait_for(|begun| *begun).await.is_err() {
            // All senders are gone, so it will never come.
            std::future::pending::<()>().await;
        }
    }
}

pub(super) fn error() -> ApiError {
    let message = "the server is shutting down before this request was answered; send it again later";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("shutting_down")
}

/// Answers requests that have no response yet when shutdown begins.
pub(super) async fn until_shutdown(
    State(shutdown): State<Shutdown>,
    request: Request,
    next: Next,
) -> Response {
    let mut shutdown = shutdown.watch();
    tokio::select! {
        response = next.run(request) => response,
        () = shutdown.begun() => error().into_response(),
    }
}
