//! Routes that download, load and unload models.

use std::{convert::Infallible, time::Instant};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use engine::LoadError;
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::KeepAliveField;
use super::{
    app_state::AppState,
    completion::NDJSON,
    handlers::JsonBody,
    model_routes,
    models::{LoadOptions, ModelState, NO_ROOM_RETRY_AFTER},
    openai::{
        self,
        error::{ApiError, ErrorObject},
    },
    pulling::{PullLine, PullStream},
};
use crate::{
    hub::{HubError, PullEvent, Pulled, RepoName},
    keep_alive::KeepAlive,
    loading::OpenError,
    source::{self, SourceError},
};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct LoadRequest {
    /// A model as `--model` takes it. Nothing is downloaded.
    model: String,
    /// Whether it becomes the default model and the former default is unloaded.
    #[schemars(extend("default" = true))]
    replace: Option<bool>,
    /// How long it stays loaded after its last request; by default as `--keep-alive` says.
    #[schemars(with = "Option<KeepAliveField>")]
    keep_alive: Option<KeepAlive>,
    /// Whether it stays until it is unloaded by name; by default if it replaces a pinned one.
    pin: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct UnloadRequest {
    /// A loaded model's name.
    model: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct PullRequest {
    /// `ORG/NAME[@REVISION][:PART]`, or a short name.
    model: String,
    /// Answer in lines of JSON during the download.
    #[schemars(extend("default" = false))]
    stream: Option<bool>,
}

/// Responds once the model is loaded or has failed to load.
pub(super) async fn load(State(state): State<AppState>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let LoadRequest { model, replace, keep_alive, pin } = openai::parse(&body.received.bytes)?;
    let started = Instant::now();
    let busy = |_| conflict("another model is being loaded; try again when it is ready");
    let options = LoadOptions { model, replace: replace.unwrap_or(true), keep_alive, pin };
    let loaded = state.load(options).map_err(busy)?.await;
    let lease = loaded.map_err(|_| internal("loading ended without a result"))??;
    let mut answer = model_routes::describe_leased(&state, &lease);
    answer["load_seconds"] = started.elapsed().as_secs_f64().into();
    Ok(Json(answer))
}

/// Unloads a model, a pinned one too; its requests finish.
pub(crate) async fn unload(State(state): State<AppState>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let UnloadRequest { model } = openai::parse(&body.received.bytes)?;
    let lease = state.loaded(Some(&model));
    let lease = lease.ok_or_else(|| {
        let message = format!("the model `{model}` is not loaded");
        ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found")
    })?;
    state.registry().remove(&lease);
    Ok(Json(json!({ "id": lease.name(), "object": "model", "state": ModelState::OnDisk.name() })))
}

/// Responds once the model is downloaded, with `stream` in JSON lines of progress.
pub(super) async fn pull(State(state): State<AppState>, body: JsonBody) -> Result<Response, ApiError> {
    let request: PullRequest = openai::parse(&body.received.bytes)?;
    let repo = source::repo(&request.model).ok_or_else(|| {
        let message = format!("{} is not ORG/NAME[@REVISION][:PART], nor a short name", request.model);
        ApiError::invalid("model", message)
    })?;
    let pull = PullStream::start(&state, repo)?;
    if request.stream.unwrap_or(false) {
        return Ok(ndjson(pull, to_json));
    }
    let (repo, pulled) = pull.finish().await?;
    Ok(Json(done(&repo, &pulled)).into_response())
}

/// The progress of a download in lines of JSON.
pub(super) fn ndjson(pull: PullStream, to_json: fn(PullLine) -> Value) -> Response {
    let lines = stream::unfold(pull, move |mut pull| async move {
        let line = format!("{}\n", to_json(pull.next().await?));
        Some((Ok::<_, Infallible>(Bytes::from(line)), pull))
    });
    ([(CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
}

/// A line as `pull` streams it.
fn to_json(line: PullLine) -> Value {
    match line {
        PullLine::Progress(PullEvent::Start { files, present, total }) => {
            json!({ "status": "starting", "files": files, "completed": present, "total": total })
        }
        PullLine::Progress(PullEvent::File { path, completed, total }) => {
            json!({ "status": "downloading", "file": path, "completed": completed, "total": total })
        }
        PullLine::Progress(PullEvent::Waiting { seconds, reason }) => {
            json!({ "status": "waiting", "seconds": seconds, "reason": reason })
        }
        PullLine::Done(repo, pulled) => done(&repo, &pulled),
        PullLine::Failed(error) => {
            let mut value = serde_json::to_value(ErrorObject { error: &error.body }).unwrap_or_default();
            value["status"] = "error".into();
            value
        }
    }
}

fn done(repo: &RepoName, pulled: &Pulled) -> Value {
    json!({ "status": "done", "model": repo.model(), "revision": pulled.commit, "path": pulled.path })
}

impl ApiError {
    /// Why a model is not loaded.
    pub fn from_open(error: &OpenError) -> ApiError {
        let message = error.to_string();
        match error {
            OpenError::Source(SourceError::Hub(HubError::Choice(_)) | SourceError::NotSafetensors(_)) => {
                ApiError::invalid("model", message)
            }
            OpenError::Source(_) => {
                ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found")
            }
            OpenError::Load { error: LoadError::MemoryFull { .. }, .. } => {
                let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).param("model");
                ApiError { retry_after: Some(NO_ROOM_RETRY_AFTER), ..error.code("out_of_memory") }
            }
            OpenError::Text(_) | OpenError::Load { .. } | OpenError::Drafting(_) => {
                ApiError::invalid("model", message).code("model_not_loadable")
            }
        }
    }
}

fn conflict(message: &str) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, message).code("busy")
}

fn internal(message: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}
