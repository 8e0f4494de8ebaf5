//! A download that reports its progress to one client.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    app_state::{AppState, MAX_PULLS, PullRejected},
    openai::error::ApiError,
    shutdown::{self, ShutdownWatch},
};
use crate::hub::{self, HubError, PullEvent, PullJob, Pulled, RepoName};

/// `Retry-After` if too many pulls run.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Shortest time between two progress lines of one file.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// A download on a thread of its own. Dropping it, as happens when the client disconnects, cancels
/// the download; partial files stay.
pub(super) struct PullStream {
    lines: UnboundedReceiver<PullLine>,
    cancelled: Arc<AtomicBool>,
    shutdown: ShutdownWatch,
    ended: bool,
}

/// What the download has reported.
pub(super) enum PullLine {
    Progress(PullEvent),
    Done(RepoName, Pulled),
    Failed(ApiError),
}

impl PullStream {
    /// # Errors
    /// The repository is being downloaded already, or too many others are.
    pub(super) fn start(state: &AppState, repo: RepoName) -> Result<PullStream, ApiError> {
        let guard = state.begin_pull(repo.id()).map_err(|rejected| pull_rejected(&rejected, &repo))?;
        let shutdown = state.common().shutdown.watch();
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
                Ok(pulled) => PullLine::Done(repo, pulled),
                Err(error) => PullLine::Failed(hub_error(&error)),
            };
            // Fails if the client has disconnected.
            let _ = sender.send(last);
        });
        Ok(PullStream { lines, cancelled, shutdown, ended: false })
    }

    /// The next line; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<PullLine> {
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

    /// The end of the download, without its progress.
    ///
    /// # Errors
    /// The download failed.
    pub(super) async fn finish(mut self) -> Result<(RepoName, Pulled), ApiError> {
        loop {
            match self.next().await {
                Some(PullLine::Done(repo, pulled)) => return Ok((repo, pulled)),
                Some(PullLine::Failed(error)) => return Err(error),
                Some(PullLine::Progress(_)) => {}
                None => {
                    let message = "the download ended without a result";
                    return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
                }
            }
        }
    }
}

impl Drop for PullStream {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Sends progress lines, at most one per file and interval.
struct ProgressReporter {
    sender: UnboundedSender<PullLine>,
    last: Mutex<HashMap<String, Instant>>,
}

impl ProgressReporter {
    fn report(&self, event: PullEvent) {
        if let PullEvent::File { path, completed, total } = &event
            && completed < total
            && !self.is_due(path)
        {
            return;
        }
        let _ = self.sender.send(PullLine::Progress(event));
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
        PullRejected::AlreadyRunning => {
            let message = format!("{} is being downloaded already", repo.id());
            ApiError::new(StatusCode::CONFLICT, message).code("busy")
        }
        PullRejected::TooMany => {
            let message =
                format!("{MAX_PULLS} models are being downloaded, the most allowed; try again later");
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("too_many_pulls");
            ApiError { retry_after: Some(RETRY_AFTER), ..error }
        }
    }
}
