//! Retries after transient failures of the hub.

use std::time::{Duration, Instant};

use super::{
    client::FetchError,
    error::HubError,
    job::{PullEvent, PullJob},
};

/// Consecutive failures without progress before a download is given up.
const MAX_FAILURES: u32 = 5;
/// Longest wait that the hub may ask for.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Waits between attempts, and counts failures.
pub(super) struct Backoff {
    failures: u32,
    /// The wait after the first failure; it doubles with each further one.
    first_wait: Duration,
}

impl Backoff {
    pub(super) fn new(first_wait: Duration) -> Backoff {
        Backoff { failures: 0, first_wait }
    }

    /// Waits as long as the hub asks, or twice as long each time; `gained`: the last attempt made
    /// progress.
    ///
    /// # Errors
    /// `error` after too many failures or if the hub asks for too long a wait; or the job was
    /// cancelled.
    pub(super) fn wait(
        &mut self,
        error: HubError,
        wait: Option<Duration>,
        gained: bool,
        job: &PullJob,
    ) -> Result<(), HubError> {
        self.failures = if gained { 1 } else { self.failures + 1 };
        let wait = wait.unwrap_or(self.first_wait * 2u32.pow(self.failures - 1));
        if self.failures >= MAX_FAILURES || wait > MAX_WAIT {
            return Err(error);
        }
        tracing::info!("waiting {} s: {error}", wait.as_secs_f32());
        job.report(PullEvent::Waiting { seconds: wait.as_secs_f64(), reason: error.to_string() });
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if job.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}

/// Repeats a request until it succeeds.
///
/// # Errors
/// A permanent failure, too many transient ones, or the job was cancelled.
pub(super) fn with_retries<T>(
    first_wait: Duration,
    job: &PullJob,
    ask: impl Fn() -> Result<T, FetchError>,
) -> Result<T, HubError> {
    let mut backoff = Backoff::new(first_wait);
    loop {
        if job.is_cancelled() {
            return Err(HubError::Cancelled);
        }
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(FetchError::Permanent(error)) => return Err(error),
            Err(FetchError::Transient { error, wait }) => backoff.wait(error, wait, false, job)?,
        }
    }
}
