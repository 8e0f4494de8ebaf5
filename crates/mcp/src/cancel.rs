//! Cancelling a call from another thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::Sender};

use crate::peer::Reply;

/// Cancels the calls that it was given to, the one that runs and all later ones. Cheap to clone;
/// all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_cancelled: bool,
    /// Callers that wait for a reply.
    waiting: Vec<Sender<Reply>>,
}

impl Cancel {
    /// Ends the running calls at once; the servers are told.
    pub fn cancel(&self) {
        let mut state = self.lock();
        state.is_cancelled = true;
        for waiting in state.waiting.drain(..) {
            // The caller may have its reply already.
            let _ = waiting.send(Reply::Cancelled);
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.lock().is_cancelled
    }

    /// Sends [`Reply::Cancelled`] once it is cancelled.
    pub(crate) fn watch(&self, waiting: &Sender<Reply>) {
        let mut state = self.lock();
        match state.is_cancelled {
            true => _ = waiting.send(Reply::Cancelled),
            false => state.waiting.push(waiting.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
