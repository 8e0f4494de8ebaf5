//! The stream of a completion: server-sent events, or lines of JSON.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response, Sse, sse::Event},
};
use futures_util::{TryStreamExt, stream};

use super::Completion;
use crate::server::{
    format::{ApiFormat, Frame},
    metrics::Outcome,
    openai::error::ApiError,
    protocol::Protocol,
    shutdown::{self, ShutdownWatch},
};

/// Keeps clients and proxies from giving up on a request that waits or prefills a long prompt.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(crate) const NDJSON: &str = "application/x-ndjson";

/// A part of a stream.
enum Part {
    Frame(Frame),
    /// A comment of server-sent events.
    Comment,
}

struct Frames<F: ApiFormat> {
    completion: Completion<F>,
    ready: VecDeque<Frame>,
    ended: bool,
    shutdown: ShutdownWatch,
}

pub(super) fn respond<F: ApiFormat>(mut completion: Completion<F>) -> Response {
    let first = completion.format.begin(&completion.answer);
    let shutdown = completion.server.common.shutdown.watch();
    let mut frames = Frames { completion, ready: VecDeque::new(), ended: false, shutdown };
    frames.push(first);
    let parts = stream::unfold(frames, |mut frames| async {
        frames.next().await.map(|part| (Ok::<_, Infallible>(part), frames))
    });
    match F::PROTOCOL {
        Protocol::OpenAi | Protocol::Anthropic => Sse::new(parts.map_ok(event)).into_response(),
        Protocol::Ollama => ([(CONTENT_TYPE, NDJSON)], Body::from_stream(parts.map_ok(line))).into_response(),
    }
}

fn event(part: Part) -> Event {
    match part {
        Part::Frame(frame) => {
            let event = Event::default().data(frame.data);
            frame.event.into_iter().fold(event, Event::event)
        }
        Part::Comment => Event::default().comment(""),
    }
}

/// Lines of JSON have no comments.
fn line(part: Part) -> Bytes {
    match part {
        Part::Frame(frame) => format!("{}\n", frame.data).into(),
        Part::Comment => Bytes::new(),
    }
}

impl<F: ApiFormat> Frames<F> {
    async fn next(&mut self) -> Option<Part> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(Part::Frame(frame));
            }
            if self.ended {
                return None;
            }
            let next = tokio::select! {
                next = self.completion.next() => next,
                () = self.shutdown.begun() => {
                    self.fail(&shutdown::error());
                    continue;
                }
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    return Some(F::keep_alive(&self.completion.answer).map_or(Part::Comment, Part::Frame));
                }
            };
            match next {
                Some(Ok(event)) => {
                    let pieces = self.completion.pieces(event);
                    self.push(pieces);
                }
                Some(Err(error)) => self.fail(&error),
                None => {
                    let last = self.completion.end();
                    self.push(last);
                    self.ended = true;
                }
            }
        }
    }

    fn push(&mut self, pieces: Vec<F::Piece>) {
        let answer = &self.completion.answer;
        self.ready.extend(pieces.into_iter().filter_map(|piece| F::frame(answer, piece)));
    }

    /// The status was sent long ago, so the error is the last event.
    fn fail(&mut self, error: &ApiError) {
        self.completion.outcome.record(Outcome::of(error));
        tracing::error!("{}", error.body.message);
        let Completion { format, outcome, .. } = &mut self.completion;
        self.ready.push_back(format.fail(error, outcome.log().id()));
        self.ended = true;
    }
}
