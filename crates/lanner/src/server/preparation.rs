//! Limits on reading and preparing requests: body timeouts, buffered bytes, and threads that parse,
//! render and tokenise. Small requests never queue after large ones.

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::StatusCode,
};
use futures_util::StreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{timeout, timeout_at},
};

use super::openai::{count::Count, error::ApiError};
use crate::config::MAX_CONNECTIONS;

/// Largest body of the small lane, in bytes.
const SMALL_BODY: usize = 256 << 10;
/// Most JSON values of the small lane.
const SMALL_COUNT: usize = 10_000;
/// Most bytes buffered at a time, for small bodies and for large ones. All connections of the
/// default limit may send a small body: slow ones take no memory that a fast one waits for.
const SMALL_BYTES: usize = MAX_CONNECTIONS as usize * SMALL_BODY;
const LARGE_BYTES: usize = 64 << 20;
/// Most bytes of answers from what the server stores, until their clients have read them.
const ANSWER_BYTES: usize = 64 << 20;
/// Bodies take at most this part of a memory limit, as a divisor.
const MEMORY_DIVISOR: usize = 8;
/// Small requests prepared at a time.
const SMALL_THREADS: usize = 4;
/// A large body takes one thread of its lane per this many bytes: tokenising needs about 115 bytes
/// of memory per byte of text, so the largest bodies are prepared alone.
const BYTES_PER_THREAD: usize = 4 << 20;
/// Requests for cache statistics that block on the engine at a time.
const WAITING_THREADS: usize = 2;
/// Lowest average upload rate after the body timeout, in bytes per second.
const MIN_RATE: f64 = 65536.0;
/// Bytes per semaphore permit.
const UNIT: usize = 1024;

/// Most blocking threads of [`Preparation`].
pub fn threads() -> usize {
    SMALL_THREADS + large_threads() + WAITING_THREADS
}

/// Few: a long prompt takes seconds of a core that the engine could use.
fn large_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).div_ceil(4).min(4)
}

pub struct Preparation {
    body_limit: usize,
    body_timeout: Duration,
    small_bytes: Arc<Semaphore>,
    large_bytes: Arc<Semaphore>,
    answer_bytes: Arc<Semaphore>,
    /// All permits of `answer_bytes`.
    answer_units: usize,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// A complete body, and its permits.
pub struct Received {
    pub bytes: Bytes,
    pub charge: Charge,
}

/// Permits of a request while it is prepared.
pub struct Charge {
    lane: Lane,
    _bytes: Option<OwnedSemaphorePermit>,
}

/// The text of an answer, and its permits.
struct Answer {
    text: Bytes,
    _charge: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// A queue with its own threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Small,
    Large {
        threads: usize,
    },
    /// Blocks on the engine.
    Waiting,
}

impl Lane {
    /// The lane of a request that also takes this many bytes of what the server stores.
    pub fn with(self, stored: usize) -> Lane {
        let threads = 1 + stored / BYTES_PER_THREAD;
        match self {
            Lane::Small if stored > SMALL_BODY => Lane::Large { threads },
            Lane::Large { threads: own } => Lane::Large { threads: own.max(threads) },
            lane => lane,
        }
    }
}

impl Charge {
    pub fn lane(&self) -> Lane {
        self.lane
    }
}

impl Preparation {
    pub fn new(body_limit: usize, body_timeout: Duration, memory_limit: Option<usize>) -> Preparation {
        let share = memory_limit.map_or(usize::MAX, |limit| limit / MEMORY_DIVISOR);
        let large = LARGE_BYTES.max(2 * body_limit).min(share).max(UNIT);
        let answer_units = units(ANSWER_BYTES.min(share).max(SMALL_BODY));
        let semaphore = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Preparation {
            body_limit: body_limit.min(large),
            body_timeout,
            small_bytes: semaphore(units(SMALL_BYTES.min(share).max(SMALL_BODY))),
            large_bytes: semaphore(units(large)),
            answer_bytes: semaphore(answer_units),
            answer_units,
            small: semaphore(SMALL_THREADS),
            large: semaphore(large_threads()),
            waiting: semaphore(WAITING_THREADS),
        }
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// 413: too large, before reading if its length is declared. 400: too many values, or it ends
    /// early. 408: too slow. 503: too many large bodies are being read.
    pub async fn read(&self, body: Body) -> Result<Received, ApiError> {
        let declared = body.size_hint().exact().unwrap_or(0);
        if declared > self.body_limit as u64 {
            return Err(self.too_large());
        }
        let mut is_large = declared > SMALL_BODY as u64;
        let mut charge = match is_large {
            true => Some(self.charge(&self.large_bytes, units(declared as usize)).await?),
            false => None,
        };
        let (mut bytes, mut count) = (Vec::with_capacity(declared as usize), Count::default());
        let (mut stream, start) = (body.into_data_stream(), Instant::now());
        let mut last = start;
        loop {
            let chunk = timeout_at(self.latest(start, last, bytes.len()).into(), stream.next()).await;
            let Some(chunk) = chunk.map_err(|_| self.too_slow())? else { break };
            let chunk = chunk.map_err(|_| ApiError::invalid_body("the body could not be read to its end"))?;
            let total = bytes.len() + chunk.len();
            if total > self.body_limit {
                return Err(self.too_large());
            }
            count.feed(&chunk)?;
            if !is_large && total > SMALL_BODY {
                is_large = true;
                // Its final length is unknown, so it is charged the largest.
                charge = Some(self.charge(&self.large_bytes, units(self.body_limit)).await?);
            } else if !is_large && units(total) > units(bytes.len()) {
                let more = self.charge(&self.small_bytes, units(total) - units(bytes.len())).await?;
                match &mut charge {
                    Some(charge) => charge.merge(more),
                    None => charge = Some(more),
                }
            }
            bytes.extend_from_slice(&chunk);
            last = Instant::now();
        }
        if let Some(charge) = &mut charge {
            drop(charge.split(charge.num_permits().saturating_sub(units(bytes.len()))));
        }
        let lane = match is_large || count.values() > SMALL_COUNT {
            true => Lane::Large { threads: 1 + bytes.len() / BYTES_PER_THREAD },
            false => Lane::Small,
        };
        Ok(Received { bytes: bytes.into(), charge: Charge { lane, _bytes: charge } })
    }

    /// Runs CPU-bound work on a thread of the lane. Dropping the future before it starts leaves the
    /// queue.
    pub async fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (free, threads) = match lane {
            Lane::Small => (&self.small, 1),
            Lane::Large { threads } => (&self.large, threads.min(large_threads())),
            Lane::Waiting => (&self.waiting, 1),
        };
        let threads = free.clone().acquire_many_owned(threads as u32).await.map_err(|_| busy())?;
        let work = move || {
            let _threads = threads;
            work()
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    /// Writes an answer of at most `bytes` on a thread of the small lane. Its bytes count until
    /// they are sent, because clients may read slowly. One that exceeds the budget is written
    /// alone.
    ///
    /// # Errors
    /// 503: other answers are being sent. Those of `write`.
    pub async fn answer(
        &self,
        bytes: usize,
        write: impl FnOnce() -> Result<Bytes, ApiError> + Send + 'static,
    ) -> Result<Bytes, ApiError> {
        let units = units(bytes).min(self.answer_units);
        let charge = self.charge(&self.answer_bytes, units).await?;
        let text = self.run(Lane::Small, write).await?;
        Ok(Bytes::from_owner(Answer { text, _charge: charge }))
    }

    async fn charge(&self, bytes: &Arc<Semaphore>, units: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        match timeout(self.body_timeout, bytes.clone().acquire_many_owned(units)).await {
            Ok(Ok(charge)) => Ok(charge),
            _ => Err(busy()),
        }
    }

    /// Deadline of the next bytes: no pause exceeds the timeout, and the average rate does not stay
    /// below [`MIN_RATE`] for longer than the timeout.
    fn latest(&self, start: Instant, last: Instant, received: usize) -> Instant {
        let all = start + self.body_timeout + Duration::from_secs_f64(received as f64 / MIN_RATE);
        all.min(last + self.body_timeout)
    }

    fn too_large(&self) -> ApiError {
        let message =
            format!("the body is larger than the limit of {} bytes; see --body-limit", self.body_limit);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("request_too_large")
    }

    fn too_slow(&self) -> ApiError {
        let message = format!(
            "the body paused for {0} s, or took longer than {0} s at less than 64 KiB/s; send it faster, or raise --body-timeout",
            self.body_timeout.as_secs_f64()
        );
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message).code("request_timeout")
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT)
}

fn busy() -> ApiError {
    let message = "too many large requests are being read; try again later";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("busy");
    ApiError { retry_after: Some(Duration::from_secs(1)), ..error }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use futures_util::{FutureExt, stream};
    use tokio::runtime::Builder;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    #[test]
    fn body_over_the_limit_is_413_declared_or_chunked() {
        let preparation = Preparation::new(1 << 20, TIMEOUT, None);
        let read = |body| block_on(preparation.read(body)).map(|received| received.bytes.len());
        let status = |result: Result<usize, ApiError>| result.map_err(|error| error.status.as_u16());
        assert_eq!(status(read(Body::from(vec![b' '; 1 << 20]))), Ok(1 << 20));
        assert_eq!(status(read(Body::from(vec![b' '; (1 << 20) + 1]))), Err(413));
        let endless = stream::iter(std::iter::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 9999])));
        assert_eq!(status(read(Body::from_stream(endless))), Err(413));
    }

    #[test]
    fn body_with_too_many_messages_is_rejected_early() {
        let preparation = Preparation::new(1 << 30, TIMEOUT, None);
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = sent.clone();
        let messages = stream::iter((0..1_000_000).map(move |_| {
            let text = if counted.fetch_add(1, Relaxed) == 0 { r#"{"messages": [{}"# } else { ", {}" };
            Ok::<_, std::io::Error>(text.as_bytes())
        }));
        let error = block_on(preparation.read(Body::from_stream(messages))).err().unwrap();
        assert_eq!((error.status.as_u16(), error.body.param.as_deref()), (400, Some("messages")));
        assert!(sent.load(Relaxed) < 20_000, "{sent:?} of a million were read");
    }

    #[test]
    fn stalled_body_times_out() {
        let preparation = Preparation::new(1 << 20, TIMEOUT, None);
        let stopped = stream::iter([Ok::<_, std::io::Error>(vec![b'{'])]).chain(stream::pending());
        let error = block_on(preparation.read(Body::from_stream(stopped))).err().unwrap();
        assert_eq!((error.status.as_u16(), error.body.code), (408, Some("request_timeout")));
    }

    #[test]
    fn large_bodies_are_limited_apart_from_small_ones() {
        let preparation = Preparation::new(1 << 20, TIMEOUT, Some((2 * MEMORY_DIVISOR) << 20));
        block_on(async {
            let large = || Body::from(vec![b' '; 1 << 20]);
            let held = [preparation.read(large()).await.ok(), preparation.read(large()).await.ok()];
            assert!(held.iter().flatten().all(|received| received.charge.lane() != Lane::Small));
            let error = preparation.read(large()).await.err().unwrap();
            assert_eq!((error.status.as_u16(), error.body.code), (503, Some("busy")));
            let small = preparation.read(Body::from("{}")).now_or_never().unwrap().ok().unwrap();
            assert_eq!(small.charge.lane(), Lane::Small);
            drop(held);
            // A body of unknown length keeps only the permits of its final length.
            let pieces =
                || stream::iter((0..20).map(|_| Ok::<_, std::io::Error>(vec![b' '; SMALL_BODY / 10])));
            let read = || preparation.read(Body::from_stream(pieces()));
            let held = [read().await.ok(), read().await.ok(), read().await.ok()];
            assert!(held.iter().flatten().all(|received| received.charge.lane() != Lane::Small));
            assert_eq!(held.iter().flatten().count(), 3);
        });
    }

    #[test]
    fn small_body_does_not_wait_for_slow_ones_on_all_other_connections() {
        let preparation = Arc::new(Preparation::new(16 << 20, Duration::from_secs(600), None));
        block_on(async {
            for _ in 1..MAX_CONNECTIONS {
                let sent = stream::iter([Ok::<_, std::io::Error>(vec![b' '; SMALL_BODY])]);
                let (slow, preparation) =
                    (Body::from_stream(sent.chain(stream::pending())), preparation.clone());
                tokio::spawn(async move { preparation.read(slow).await.map(|_| ()) });
            }
            // Until each has read what was sent.
            while preparation.small_bytes.available_permits() > units(SMALL_BODY) {
                tokio::task::yield_now().await;
            }
            let chunked = Body::from_stream(stream::iter([Ok::<_, std::io::Error>("{}")]));
            assert!(preparation.read(chunked).now_or_never().is_some_and(|body| body.is_ok()));
        });
    }

    #[test]
    fn answers_count_until_they_are_sent() {
        let preparation = Preparation::new(1 << 20, TIMEOUT, None);
        let write = |length: usize| move || Ok::<Bytes, ApiError>(vec![b' '; length].into());
        block_on(async {
            let unread = preparation.answer(ANSWER_BYTES - UNIT, write(1)).await.unwrap();
            assert!(preparation.answer(UNIT, write(7)).await.is_ok_and(|answer| answer.len() == 7));
            let error = preparation.answer(2 * UNIT, write(1)).await.err().unwrap();
            assert_eq!((error.status.as_u16(), error.body.code), (503, Some("busy")));
            // A piece that is still to be sent holds all of it.
            let piece = unread.slice(0..1);
            drop(unread);
            assert!(preparation.answer(2 * UNIT, write(1)).await.is_err());
            drop(piece);
            assert!(preparation.answer(2 * ANSWER_BYTES, write(1)).await.is_ok(), "a large one goes alone");
        });
    }

    #[test]
    fn body_limit_is_a_part_of_the_memory_limit() {
        let preparation = Preparation::new(16 << 20, TIMEOUT, Some(8 << 20));
        let status = |length: usize| {
            block_on(preparation.read(Body::from(vec![b' '; length])))
                .err()
                .map(|error| error.status.as_u16())
        };
        assert_eq!(status(1 << 20), None);
        assert_eq!(status((1 << 20) + 1), Some(413));
    }

    #[test]
    fn body_with_many_values_uses_the_large_lane() {
        let preparation = Preparation::new(64 << 20, TIMEOUT, None);
        let lane = |body: Body| block_on(preparation.read(body)).ok().map(|received| received.charge.lane());
        let values = |count: usize| Body::from(format!("{{\"a\": [{}]}}", vec!["0"; count].join(",")));
        assert_eq!(lane(values(SMALL_COUNT)), Some(Lane::Small));
        assert_eq!(lane(values(SMALL_COUNT + 1)), Some(Lane::Large { threads: 1 }));
        assert_eq!(lane(Body::from(vec![b' '; 2 * BYTES_PER_THREAD])), Some(Lane::Large { threads: 3 }));
        assert_eq!(Lane::Small.with(SMALL_BODY), Lane::Small);
        assert_eq!(Lane::Small.with(2 * BYTES_PER_THREAD), Lane::Large { threads: 3 });
    }

    #[test]
    fn small_lane_does_not_wait_for_large_lane() {
        let runtime =
            Builder::new_multi_thread().max_blocking_threads(threads()).enable_time().build().unwrap();
        let preparation = Arc::new(Preparation::new(1 << 20, TIMEOUT, None));
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(wait));
        for _ in 0..3 * large_threads() {
            let (preparation, wait) = (preparation.clone(), wait.clone());
            runtime.spawn(async move {
                // Until the sender is dropped.
                let stuck = move || Ok(wait.lock().map(|wait| wait.recv().is_err()).unwrap_or(true));
                preparation.run(Lane::Large { threads: 9 }, stuck).await
            });
        }
        let small = runtime.block_on(preparation.run(Lane::Small, || Ok(7)));
        assert_eq!(small.ok(), Some(7));
        drop(release);
    }
}
