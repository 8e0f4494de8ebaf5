//! HTTP/1 connections: their number, timeouts and orderly close. The router handles requests.

mod activity;
mod watched;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, StatusCode, header::CONNECTION},
};
use hyper::{
    body::{Body as _, Incoming},
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{interval, sleep, timeout},
};

use self::{
    activity::{Activity, Overdue},
    watched::{RequestBody, ResponseBody, Watched},
};
use super::openai::error::ApiError;
use crate::config::{ServeConfig, Timeouts};

/// Bytes buffered per connection and direction; a request head must fit.
const BUFFER: usize = 64 << 10;
/// How long the server keeps reading after a response that was sent before the whole request body.
const LINGER: Duration = Duration::from_secs(5);
/// Rejected connections that get a 503 at a time; further ones are closed without a response.
const REFUSALS: usize = 64;
/// How long a new connection waits for the slot of an evicted idle one.
const EVICTION_WAIT: Duration = Duration::from_secs(5);

/// All connections of a server.
pub(super) struct Connections {
    router: TowerToHyperService<Router>,
    timeouts: Timeouts,
    most: u32,
    slots: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    open: Mutex<BTreeMap<u64, Arc<Activity>>>,
    next: AtomicU64,
    closing: watch::Sender<bool>,
}

impl Connections {
    pub(super) fn new(router: Router, config: &ServeConfig) -> Arc<Connections> {
        Arc::new(Connections {
            router: TowerToHyperService::new(router),
            timeouts: config.timeouts,
            most: config.max_connections,
            slots: Arc::new(Semaphore::new(config.max_connections as usize)),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            closing: watch::Sender::new(false),
        })
    }

    /// Serves every connection of the listener.
    pub(super) async fn accept(self: &Arc<Connections>, listener: TcpListener) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    // Usually out of file descriptors, some of which are soon free again.
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Tokens are small packets; Nagle's algorithm would delay them.
            let _ = stream.set_nodelay(true);
            match self.slot().await {
                Some(slot) => drop(tokio::spawn(self.clone().run(stream, slot))),
                None => self.refuse(stream),
            }
        }
    }

    /// Closes connections that exceed a timeout. Runs beside [`accept`](Connections::accept).
    pub(super) async fn enforce_timeouts(self: Arc<Connections>) {
        let Timeouts { head, idle, write, .. } = self.timeouts;
        let tick = (head.min(idle).min(write) / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let mut ticks = interval(tick);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            self.open().values().for_each(|activity| activity.check(&self.timeouts, now));
        }
    }

    /// Closes connections without a request now, and others after their response.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until all connections have ended.
    pub(super) async fn ended(&self) {
        let _ = self.slots.acquire_many(self.most).await;
    }

    /// A slot for one more connection. If none is free, the longest idle connection is evicted.
    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Some(slot);
        }
        let now = Instant::now();
        let idle = self
            .open()
            .values()
            .filter_map(|activity| Some((activity.idle_since()?, activity.clone())))
            .min_by_key(|(since, _)| *since);
        let (since, activity) = idle?;
        tracing::debug!("closing a connection idle for {:?} to take another", now - since);
        activity.close();
        timeout(EVICTION_WAIT, self.slots.clone().acquire_owned()).await.ok()?.ok()
    }

    fn refuse(&self, mut stream: TcpStream) {
        let Ok(refusal) = self.refusals.clone().try_acquire_owned() else { return };
        let message = format!(
            "{} connections are open, the most allowed; try again later, or raise --max-connections",
            self.most
        );
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("too_many_connections");
        let error = ApiError { retry_after: Some(Duration::from_secs(1)), ..error };
        tokio::spawn(async move {
            send_error(&mut stream, &error).await;
            drop(refusal);
        });
    }

    async fn run(self: Arc<Connections>, mut stream: TcpStream, slot: OwnedSemaphorePermit) {
        let (id, activity) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(Activity::new()));
        self.open().insert(id, activity.clone());
        self.serve(&mut stream, &activity).await;
        self.open().remove(&id);
        match activity.overdue() {
            Some(Overdue::Head) => send_error(&mut stream, &slow_head(self.timeouts.head)).await,
            // Closing with unread bytes resets the connection, and the client may lose the
            // response.
            None if activity.has_unread_body() => linger(&mut stream).await,
            _ => {}
        }
        drop(slot);
    }

    /// Runs until the connection ends or must be closed.
    async fn serve(&self, stream: &mut TcpStream, activity: &Arc<Activity>) {
        let service = service_fn(|request: Request<Incoming>| {
            activity.begin(!request.body().is_end_stream());
            let request = request.map(|body| Body::new(RequestBody { body, activity: activity.clone() }));
            let response = self.router.call(request);
            async {
                let Ok(mut response) = response.await;
                if activity.has_unread_body() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response.map(|body| ResponseBody { body, activity: activity.clone() }))
            }
        });
        let io = TokioIo::new(Watched { stream, activity: activity.clone() });
        let mut connection = pin!(http1::Builder::new().max_buf_size(BUFFER).serve_connection(io, service));
        let (mut closing, mut shutting_down) = (self.closing.subscribe(), false);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    return ended.unwrap_or_else(|error| tracing::debug!("a connection ended: {error}"));
                }
                () = activity.closed() => return,
                _ = closing.wait_for(|closing| *closing), if !shutting_down => {
                    if !activity.has_request() {
                        return;
                    }
                    shutting_down = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Activity>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slow_head(limit: Duration) -> ApiError {
    let message = format!("the request head did not arrive within {} s", limit.as_secs_f64());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, message).code("request_timeout")
}

/// Sends an error that belongs to no request, and closes the connection.
async fn send_error(stream: &mut TcpStream, error: &ApiError) {
    let response = error.to_http();
    if let Ok(Ok(())) = timeout(LINGER, stream.write_all(response.as_bytes())).await {
        linger(stream).await;
    }
}

/// Lingering close: discards input until the client closes, for at most [`LINGER`].
async fn linger(stream: &mut TcpStream) {
    // Already done where hyper ended the connection.
    let _ = stream.shutdown().await;
    let mut unread = vec![0; BUFFER];
    let _ = timeout(LINGER, async { while let Ok(1..) = stream.read(&mut unread).await {} }).await;
}
