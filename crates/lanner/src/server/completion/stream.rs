//! The stream of a completion: server-sent events, or lines of JSON.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse, Response, Sse,
    sse::{Event, KeepAlive},
};
use futures_util::stream;

use super::Completion;
use crate::server::{
    format::{ApiFormat, Frame},
    metrics::Outcome,
    openai::error::ApiError,
    shutdown::{self, ShutdownWatch},
};

/// Keeps proxies from giving up on a request that waits or prefills a long prompt.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

struct Frames<F: ApiFormat> {
    completion: Completion<F>,
    ready: VecDeque<Frame>,
    ended: bool,
    shutdown: ShutdownWatch,
}

pub fn respond<F: ApiFormat>(mut completion: Completion<F>) -> Response {
    let first = completion.format.begin(&completion.answer);
    let shutdown = completion.server.shutdown.watch();
    let mut frames = Frames { completion, ready: VecDeque::new(), ended: false, shutdown };
    frames.push(first);
    let events = stream::unfold(frames, |mut frames| async {
        frames.next().await.map(|frame| (Ok::<_, Infallible>(event(frame)), frames))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

fn event(frame: Frame) -> Event {
    let event = Event::default().data(frame.data);
    frame.event.into_iter().fold(event, Event::event)
}

impl<F: ApiFormat> Frames<F> {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
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
            };
            match next {
                Some(Ok((index, event))) => {
                    let pieces = self.completion.pieces(index, event);
                    self.push(pieces);
                }
                Some(Err(error)) => self.fail(&ApiError::from_engine(&error, F::PROMPT)),
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
