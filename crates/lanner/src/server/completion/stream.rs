//! Server-sent events of a completion.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse, Response, Sse,
    sse::{Event, KeepAlive},
};
use futures_util::stream;
use serde::Serialize;

use super::Completion;
use crate::{
    generate::ChoiceEvent,
    server::{
        metrics::Outcome,
        openai::{
            ApiFormat,
            error::{ApiError, ErrorObject},
        },
        shutdown::{self, ShutdownWatch},
    },
};

/// Keeps proxies from giving up on a request that waits or prefills a long prompt.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

struct Events<F: ApiFormat> {
    completion: Completion<F>,
    ready: VecDeque<Event>,
    include_usage: bool,
    ended: bool,
    shutdown: ShutdownWatch,
}

/// Streams the completion; `include_usage` adds a chunk with the usage at the end.
pub fn respond<F: ApiFormat>(mut completion: Completion<F>, include_usage: bool) -> Response {
    let first = (0..completion.choices).filter_map(|index| completion.format.first_piece(index));
    let first = first.collect::<Vec<_>>().into_iter();
    let chunk = |piece| json(&completion.envelope(F::CHUNK, vec![piece], include_usage.then_some(None)));
    let (ready, shutdown) = (first.map(chunk).collect(), completion.server.shutdown.watch());
    let events = Events { ready, include_usage, ended: false, shutdown, completion };
    let events = stream::unfold(events, |mut events| async {
        events.next().await.map(|event| (Ok::<_, Infallible>(event), events))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

impl<F: ApiFormat> Events<F> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
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
                Some(Ok((index, event))) => self.push(index, event),
                Some(Err(error)) => self.fail(&ApiError::from_engine(&error, F::PROMPT)),
                None => self.end(),
            }
        }
    }

    fn push(&mut self, index: usize, event: ChoiceEvent) {
        if let Some(piece) = self.completion.piece(index, event) {
            let usage = self.include_usage.then_some(None);
            self.ready.push_back(json(&self.completion.envelope(F::CHUNK, vec![piece], usage)));
        }
    }

    /// The status was sent long ago, so the error is an event; no `[DONE]` follows it.
    fn fail(&mut self, error: &ApiError) {
        self.completion.outcome.record(Outcome::of(error));
        tracing::error!("{}", error.body.message);
        self.ready.push_back(json(&ErrorObject { error: &error.body }));
        self.ended = true;
    }

    fn end(&mut self) {
        if self.include_usage {
            let usage = Some(Some(self.completion.usage.take()));
            self.ready.push_back(json(&self.completion.envelope(F::CHUNK, Vec::<F::Piece>::new(), usage)));
        }
        self.completion.record_outcome();
        self.ready.push_back(Event::default().data("[DONE]"));
        self.ended = true;
    }
}

fn json(data: &impl Serialize) -> Event {
    // Fails only for types that JSON cannot represent; these are plain structs.
    Event::default().json_data(data).unwrap_or_default()
}
