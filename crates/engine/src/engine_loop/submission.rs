//! A submitted request, and the way to its caller: every one gets exactly one final event.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::{admission::Permit, meter::Meter};
use crate::api::{Event, Request, RequestError};

/// Receives a request's events on the engine thread, those of a step together; must not block.
pub(super) type Sink = Box<dyn FnMut(Vec<Event>) + Send>;

pub(crate) struct Submission {
    pub request: Request,
    /// Held until the request has ended.
    permit: Option<Arc<Permit>>,
    sink: Sink,
    pending_events: Vec<Event>,
    cancelled: Arc<AtomicBool>,
    /// The final event was sent.
    ended: bool,
    pub meter: Meter,
}

impl Submission {
    pub(crate) fn new(
        request: Request,
        permit: Arc<Permit>,
        sink: Sink,
        cancelled: Arc<AtomicBool>,
        meter: Meter,
    ) -> Submission {
        Submission {
            request,
            permit: Some(permit),
            sink,
            pending_events: vec![],
            cancelled,
            ended: false,
            meter,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Requests of one group queue as one.
    pub(crate) fn group(&self) -> u64 {
        self.permit.as_ref().map_or(0, |permit| permit.id)
    }

    /// Drops the request without an event: the caller gets an error instead.
    pub(crate) fn reject(mut self) {
        self.ended = true;
    }

    /// Keeps an event until [`flush`](Submission::flush): one call for all tokens of a step wakes
    /// the caller once.
    pub(crate) fn buffer(&mut self, event: Event) {
        self.meter.record(&event);
        self.pending_events.push(event);
    }

    /// Hands buffered events to the caller. A sink that panics cancels its own request.
    pub(crate) fn flush(&mut self) {
        if self.pending_events.is_empty() {
            return;
        }
        let (sink, events) = (&mut self.sink, std::mem::take(&mut self.pending_events));
        if catch_unwind(AssertUnwindSafe(|| sink(events))).is_err() {
            self.cancel();
        }
    }

    /// Hands buffered events and this one to the caller.
    pub(crate) fn send(&mut self, event: Event) {
        if self.ended {
            return;
        }
        if matches!(event, Event::Finished { .. } | Event::Failed(_)) {
            // The caller may submit again as soon as it has the final event.
            self.permit = None;
            self.ended = true;
        }
        self.buffer(event);
        self.flush();
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if !self.ended {
            let lost = || RequestError::Step("the engine failed while it worked on it".into());
            self.send(Event::Failed(if thread::panicking() { lost() } else { RequestError::EngineStopped }));
        }
    }
}
