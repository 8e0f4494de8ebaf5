//! The model that a request's body names.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use engine::RequestError;
use serde::Deserialize;
use serde_json::Value;

use super::lease::ModelLease;
use crate::server::{
    app_state::AppState,
    openai::error::ApiError,
    preparation::{Lane, Preparation, Received},
};

/// The fields that matter before the body is read in full; others may be wrong still.
#[derive(Default, Deserialize)]
struct Named {
    model: Option<String>,
    timeout: Option<Value>,
}

impl AppState {
    /// The model that a body names, or the default one; it is loaded if need be, within the body's
    /// `timeout`.
    ///
    /// # Errors
    /// Those of [`lease`](AppState::lease); 504: the time is up.
    pub async fn lease_for(
        &self,
        preparation: &Preparation,
        received: &Received,
        arrived: Instant,
    ) -> Result<ModelLease, ApiError> {
        let bytes = received.bytes.clone();
        let Named { model, timeout } = match received.charge.lane() {
            Lane::Small => named(&bytes),
            _ => preparation.run(received.charge.parsing_lane(), move || Ok(named(&bytes))).await?,
        };
        let seconds = timeout.as_ref().and_then(Value::as_f64);
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let lease = self.lease(model.as_deref());
        match time.and_then(|time| arrived.checked_add(time)) {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), lease)
                .await
                .unwrap_or_else(|_| Err(ApiError::from_engine(&RequestError::TimeIsUp, "timeout"))),
            None => lease.await,
        }
    }
}

fn named(body: &Bytes) -> Named {
    // A body that is not valid is refused when it is parsed.
    serde_json::from_slice(body).unwrap_or_default()
}
