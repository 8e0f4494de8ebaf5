//! Limits on reading and preparing requests: body timeouts, buffered bytes, and threads that parse,
//! render and tokenise. Small requests never queue after large ones.

#[cfg(test)]
mod tests;

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
use crate::{config::MAX_CONNECTIONS, model::ImageMemory};

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
/// Largest body with images, in bytes; without them, the text in it keeps to the body limit.
const IMAGE_BODY: usize = 64 << 20;
/// Most bytes of decoded images, until the engine has read their prompts.
const IMAGE_BYTES: usize = 1 << 30;
/// Most bytes of files fetched from URLs: those of one request of the largest files.
const FILE_BYTES: usize = 160 << 20;
/// Largest body with images that is parsed in the small lane, in bytes: pictures are decoded from
/// base64 in milliseconds, and only text takes long to tokenise.
const SMALL_IMAGE_BODY: usize = 2 << 20;
/// Most bytes that the images of a request in the small lane take while they are decoded, and most
/// pixels: those of a picture of one megapixel in any format and for any model here.
const SMALL_IMAGE_BYTES: usize = 64 << 20;
const SMALL_IMAGE_PIXELS: u64 = 2 << 20;
/// Images fetched from URLs at a time.
const FETCHING_THREADS: usize = 4;
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
    SMALL_THREADS + large_threads() + WAITING_THREADS + FETCHING_THREADS
}

/// Few: a long prompt takes seconds of a core that the engine could use.
fn large_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).div_ceil(4).min(4)
}

pub struct Preparation {
    body_limit: usize,
    image_body_limit: usize,
    body_timeout: Duration,
    small_bytes: Arc<Semaphore>,
    large_bytes: Arc<Semaphore>,
    answer_bytes: Arc<Semaphore>,
    /// All permits of `answer_bytes`.
    answer_units: usize,
    image_bytes: Arc<Semaphore>,
    /// All permits of `image_bytes`.
    image_units: usize,
    file_bytes: Arc<Semaphore>,
    /// All permits of `file_bytes`.
    file_units: usize,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    fetching: Arc<Semaphore>,
}

/// Content that a body may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    Text,
    WithImages,
}

/// Permits for the images of a request, as files or decoded.
pub struct ImageCharge {
    bytes: OwnedSemaphorePermit,
}

/// A complete body, and its permits.
pub struct Received {
    pub bytes: Bytes,
    pub charge: Charge,
    /// Most bytes besides images.
    pub text_limit: usize,
}

/// Permits of a request while it is prepared.
pub struct Charge {
    /// Bytes of the body, and JSON values besides its images.
    length: usize,
    values: usize,
    kind: BodyKind,
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
    /// Blocks on another server.
    Fetching,
}

impl Lane {
    /// The lane for this many bytes of text and values.
    fn of(bytes: usize, values: usize) -> Lane {
        match bytes > SMALL_BODY || values > SMALL_COUNT {
            true => Lane::Large { threads: 1 + bytes / BYTES_PER_THREAD },
            false => Lane::Small,
        }
    }

    /// The lane of a request that also takes this many bytes of what the server stores.
    pub fn with(self, stored: usize) -> Lane {
        let threads = 1 + stored / BYTES_PER_THREAD;
        match self {
            Lane::Small if stored > SMALL_BODY => Lane::Large { threads },
            Lane::Large { threads: own } => Lane::Large { threads: own.max(threads) },
            lane => lane,
        }
    }

    /// The lane of a request that also decodes images which take this memory.
    pub fn with_images(self, memory: ImageMemory) -> Lane {
        let bytes = memory.decoding.saturating_add(memory.tensors);
        match bytes <= SMALL_IMAGE_BYTES && memory.pixels <= SMALL_IMAGE_PIXELS {
            true => self,
            false => self.with(bytes.max(SMALL_BODY + 1)),
        }
    }
}

impl Charge {
    /// The lane of a body whose every byte may be text.
    pub fn lane(&self) -> Lane {
        Lane::of(self.length, self.values)
    }

    /// The lane for parsing the body, and for nothing that takes long for text.
    pub fn parsing_lane(&self) -> Lane {
        match self.kind {
            BodyKind::WithImages if self.length <= SMALL_IMAGE_BODY => Lane::of(0, self.values),
            BodyKind::WithImages | BodyKind::Text => self.lane(),
        }
    }

    /// The lane of a body with this many bytes besides its images.
    pub fn lane_of_text(&self, text: usize) -> Lane {
        Lane::of(text, self.values)
    }
}

impl ImageCharge {
    /// Bytes that it allows.
    pub fn bytes(&self) -> usize {
        self.bytes.num_permits() * UNIT
    }

    /// Gives back all but this many bytes.
    pub fn shrink(&mut self, bytes: usize) {
        drop(self.bytes.split(self.bytes.num_permits().saturating_sub(units(bytes))));
    }
}

impl Preparation {
    pub fn new(body_limit: usize, body_timeout: Duration, memory_limit: Option<usize>) -> Preparation {
        let share = memory_limit.map_or(usize::MAX, |limit| limit / MEMORY_DIVISOR);
        let large = LARGE_BYTES.max(2 * body_limit).min(share).max(UNIT);
        let answer_units = units(ANSWER_BYTES.min(share).max(SMALL_BODY));
        let image_units = units(IMAGE_BYTES.min(share).max(SMALL_BODY));
        let file_units = units(FILE_BYTES.min(share).max(SMALL_BODY));
        let semaphore = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Preparation {
            body_limit: body_limit.min(large),
            image_body_limit: body_limit.max(IMAGE_BODY).min(large),
            body_timeout,
            small_bytes: semaphore(units(SMALL_BYTES.min(share).max(SMALL_BODY))),
            large_bytes: semaphore(units(large)),
            answer_bytes: semaphore(answer_units),
            answer_units,
            image_bytes: semaphore(image_units),
            image_units,
            file_bytes: semaphore(file_units),
            file_units,
            small: semaphore(SMALL_THREADS),
            large: semaphore(large_threads()),
            waiting: semaphore(WAITING_THREADS),
            fetching: semaphore(FETCHING_THREADS),
        }
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// 413: too large, before reading if its length is declared. 400: too many values, or it ends
    /// early. 408: too slow. 503: too many large bodies are being read.
    pub async fn read(&self, body: Body, kind: BodyKind) -> Result<Received, ApiError> {
        let limit = self.limit(kind);
        let declared = body.size_hint().exact().unwrap_or(0);
        if declared > limit as u64 {
            return Err(self.too_large(kind));
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
            if total > limit {
                return Err(self.too_large(kind));
            }
            count.feed(&chunk)?;
            if !is_large && total > SMALL_BODY {
                is_large = true;
                // Its final length is unknown, so it is charged the largest of a text.
                charge = Some(self.charge(&self.large_bytes, units(self.body_limit)).await?);
            } else if is_large && declared == 0 && total > self.body_limit && bytes.len() <= self.body_limit {
                let rest = units(limit) - units(self.body_limit);
                let more = self.charge(&self.large_bytes, rest).await?;
                if let Some(charge) = &mut charge {
                    charge.merge(more);
                }
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
        let charge = Charge { length: bytes.len(), values: count.values(), kind, _bytes: charge };
        Ok(Received { bytes: bytes.into(), charge, text_limit: self.body_limit })
    }

    fn limit(&self, kind: BodyKind) -> usize {
        match kind {
            BodyKind::Text => self.body_limit,
            BodyKind::WithImages => self.image_body_limit,
        }
    }

    /// Acquires memory for bytes of decoded images; `param` is the field that holds them.
    ///
    /// # Errors
    /// 400: more than all that there is. 503: other requests have it.
    pub async fn charge_images(&self, bytes: usize, param: &str) -> Result<ImageCharge, ApiError> {
        let (needed, all) = (units(bytes), self.image_units);
        if needed > all {
            let message = format!(
                "the images in {param} take {bytes} bytes once decoded, more than the server's {}; \
                 send fewer or smaller ones",
                all * UNIT
            );
            return Err(ApiError::invalid(param, message).code("invalid_image"));
        }
        self.charge_from(&self.image_bytes, needed).await
    }

    /// Acquires memory for the files of `count` images of at most `bytes` each, before they are
    /// fetched; less than that if the server has less for all requests.
    ///
    /// # Errors
    /// 503: other requests have it.
    pub async fn charge_files(&self, count: usize, bytes: usize) -> Result<ImageCharge, ApiError> {
        self.charge_from(&self.file_bytes, units(count * bytes).min(self.file_units)).await
    }

    async fn charge_from(&self, bytes: &Arc<Semaphore>, units: usize) -> Result<ImageCharge, ApiError> {
        let charge = self.charge(bytes, units).await;
        charge.map(|bytes| ImageCharge { bytes }).map_err(|mut error| {
            error.body.message = "other requests' images take all memory for images; try again later".into();
            error
        })
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
            Lane::Fetching => (&self.fetching, 1),
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

    fn too_large(&self, kind: BodyKind) -> ApiError {
        let limit = self.limit(kind);
        let message = match kind {
            BodyKind::Text => format!("the body is larger than the limit of {limit} bytes; see --body-limit"),
            BodyKind::WithImages => {
                format!(
                    "the body is larger than the limit of {limit} bytes for bodies with images; send fewer"
                )
            }
        };
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
