//! Routes that download a model or serve another one.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use engine::LoadError;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    app_state::{AppState, MAX_PULLS, PullRejected},
    handlers::{self, JsonBody},
    openai::{
        self,
        error::{ApiError, ErrorObject},
    },
    shutdown::{self, ShutdownWatch},
};
use crate::{
    hub::{self, HubError, PullEvent, PullJob, Pulled, RepoName},
    loading::OpenError,
    source::{self, SourceError},
};

/// `Retry-After` if too many pulls run.
const PULL_RETRY_AFTER: Duration = Duration::from_secs(30);
/// Shortest time between two progress lines of one file.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct LoadRequest {
    model: String,
}

#[derive(Deserialize)]
struct PullRequest {
    model: String,
    #[serde(default)]
    stream: Option<bool>,
}

/// Responds once the other model is served or has failed to load.
pub async fn load(State(state): State<AppState>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let request: LoadRequest = openai::parse(&body.0.bytes)?;
    let started = Instant::now();
    let busy = |_| conflict("another model is being loaded; try again when it is ready");
    let loaded = state.load(request.model).map_err(busy)?.await;
    let loaded = loaded.map_err(|_| internal("loading ended without a result"))?;
    let server = loaded.map_err(|error| open_error(&error))?;
    let mut answer = handlers::describe(&server);
    answer["load_seconds"] = started.elapsed().as_secs_f64().into();
    Ok(Json(answer))
}

/// Responds once the model is downloaded, with `stream` in JSON lines of progress.
pub async fn pull(State(state): State<AppState>, body: JsonBody) -> Result<Response, ApiError> {
    let request: PullRequest = openai::parse(&body.0.bytes)?;
    let repo = source::repo(&request.model).ok_or_else(|| {
        let message = format!("{} is not ORG/NAME[@REVISION][:PART], nor a short name", request.model);
        ApiError::invalid("model", message)
    })?;
    let mut lines = PullStream::start(&state, repo)?;
    if request.stream.unwrap_or(false) {
        let lines = stream::unfold(lines, |mut lines| async {
            lines.next().await.map(|line| (Ok::<_, Infallible>(Bytes::from(line.to_json())), lines))
        });
        return Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response());
    }
    loop {
        match lines.next().await {
            Some(PullLine::Done(answer)) => return Ok(Json(answer).into_response()),
            Some(PullLine::Failed(error)) => return Err(error),
            Some(PullLine::Progress(_)) => {}
            None => return Err(internal("the download ended without a result")),
        }
    }
}

/// A download on a thread of its own. Dropping it, as happens when the client disconnects, cancels
/// the download; partial files stay.
struct PullStream {
    lines: UnboundedReceiver<PullLine>,
    cancelled: Arc<AtomicBool>,
    shutdown: ShutdownWatch,
    ended: bool,
}

enum PullLine {
    Progress(Value),
    Done(Value),
    Failed(ApiError),
}

impl PullStream {
    fn start(state: &AppState, repo: RepoName) -> Result<PullStream, ApiError> {
        let guard = state.begin_pull(repo.id()).map_err(|rejected| pull_rejected(&rejected, &repo))?;
        let shutdown = state.current().shutdown.watch();
        let (sender, lines) = unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let (state, stop) = (state.clone(), cancelled.clone());
        thread::spawn(move || {
            let progress = ProgressReporter { sender: sender.clone(), last: Mutex::default() };
            let job = PullJob { report: &|event| progress.report(event), cancelled: &stop };
            let result = hub::pull(state.hub(), &repo, &job);
            // Released before the client knows, which may send the next request at once.
            drop(guard);
            let last = match result {
                Ok(pulled) => PullLine::Done(done(&repo, &pulled)),
                Err(error) => PullLine::Failed(hub_error(&error)),
            };
            // Fails if the client has disconnected.
            let _ = sender.send(last);
        });
        Ok(PullStream { lines, cancelled, shutdown, ended: false })
    }

    async fn next(&mut self) -> Option<PullLine> {
        if self.ended {
            return None;
        }
        tokio::select! {
            line = self.lines.recv() => line,
            () = self.shutdown.begun() => {
                self.ended = true;
                Some(PullLine::Failed(shutdown::error()))
            }
        }
    }
}

impl Drop for PullStream {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl PullLine {
    fn to_json(&self) -> String {
        let value = match self {
            PullLine::Progress(value) | PullLine::Done(value) => value.clone(),
            PullLine::Failed(error) => {
                let mut value = serde_json::to_value(ErrorObject { error: &error.body }).unwrap_or_default();
                value["status"] = "error".into();
                value
            }
        };
        format!("{value}\n")
    }
}

/// Sends progress lines, at most one per file and interval.
struct ProgressReporter {
    sender: UnboundedSender<PullLine>,
    last: Mutex<HashMap<String, Instant>>,
}

impl ProgressReporter {
    fn report(&self, event: PullEvent) {
        let line = match event {
            PullEvent::Start { files, present, total } => {
                json!({ "status": "starting", "files": files, "completed": present, "total": total })
            }
            PullEvent::File { path, completed, total } => {
                if completed < total && !self.is_due(&path) {
                    return;
                }
                json!({ "status": "downloading", "file": path, "completed": completed, "total": total })
            }
            PullEvent::Waiting { seconds, reason } => {
                json!({ "status": "waiting", "seconds": seconds, "reason": reason })
            }
        };
        let _ = self.sender.send(PullLine::Progress(line));
    }

    fn is_due(&self, path: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.get(path).is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL);
        if due {
            last.insert(path.to_owned(), Instant::now());
        }
        due
    }
}

fn done(repo: &RepoName, pulled: &Pulled) -> Value {
    json!({ "status": "done", "model": repo.model(), "revision": pulled.commit, "path": pulled.path })
}

fn open_error(error: &OpenError) -> ApiError {
    let message = error.to_string();
    match error {
        OpenError::Source(SourceError::Hub(HubError::Choice(_)) | SourceError::NotSafetensors(_)) => {
            ApiError::invalid("model", message)
        }
        OpenError::Source(_) => {
            ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found")
        }
        OpenError::Load { error: LoadError::MemoryFull { .. }, .. } => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).param("model").code("out_of_memory")
        }
        OpenError::Text(_) | OpenError::Load { .. } | OpenError::Drafting(_) => {
            ApiError::invalid("model", message).code("model_not_loadable")
        }
    }
}

/// Status and code of an error: 4xx if another request can succeed.
fn hub_error(error: &HubError) -> ApiError {
    let message = error.to_string();
    let (status, code) = match error {
        HubError::NoRepo { .. } | HubError::NoRevision { .. } | HubError::NoFile { .. } => {
            (StatusCode::NOT_FOUND, "model_not_found")
        }
        HubError::Gated { .. } | HubError::Refused { .. } => (StatusCode::FORBIDDEN, "hub_access_denied"),
        HubError::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "hub_rate_limited"),
        HubError::Choice(_) | HubError::Traversal { .. } => (StatusCode::BAD_REQUEST, "model_not_usable"),
        HubError::Offline { .. } => (StatusCode::SERVICE_UNAVAILABLE, "hub_offline"),
        HubError::DiskFull { .. } => (StatusCode::INSUFFICIENT_STORAGE, "disk_full"),
        HubError::Write { .. } | HubError::Read { .. } | HubError::NoCache => {
            (StatusCode::INTERNAL_SERVER_ERROR, "cache_error")
        }
        _ => (StatusCode::BAD_GATEWAY, "hub_error"),
    };
    ApiError::new(status, message).code(code)
}

fn pull_rejected(rejected: &PullRejected, repo: &RepoName) -> ApiError {
    match rejected {
        PullRejected::AlreadyRunning => conflict(&format!("{} is being downloaded already", repo.id())),
        PullRejected::TooMany => {
            let message =
                format!("{MAX_PULLS} models are being downloaded, the most allowed; try again later");
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("too_many_pulls");
            ApiError { retry_after: Some(PULL_RETRY_AFTER), ..error }
        }
    }
}

fn conflict(message: &str) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, message).code("busy")
}

fn internal(message: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}
