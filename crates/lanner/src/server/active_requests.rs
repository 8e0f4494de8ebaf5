//! Requests being generated, by id, so that they can be cancelled from another connection.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::generate::Canceller;

/// Cheap to clone; all clones are the same list.
#[derive(Clone, Default)]
pub(super) struct ActiveRequests(Arc<Shared>);

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    requests: Mutex<BTreeMap<u64, ActiveRequest>>,
}

struct ActiveRequest {
    /// Of the request and of its answer. Clients choose the former, so several requests may share
    /// it.
    ids: [String; 2],
    canceller: Canceller,
}

/// Removes the request from the list when dropped.
pub(super) struct ActiveGuard {
    active: ActiveRequests,
    key: u64,
}

impl ActiveRequests {
    pub(super) fn insert(&self, ids: [String; 2], canceller: Canceller) -> ActiveGuard {
        let key = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(key, ActiveRequest { ids, canceller });
        ActiveGuard { active: self.clone(), key }
    }

    /// Cancels all requests with this id; returns how many there were.
    pub(super) fn cancel(&self, id: &str) -> usize {
        let requests = self.lock();
        let named = requests.values().filter(|request| request.ids.iter().any(|own| own == id));
        named.map(|request| request.canceller.cancel()).count()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, ActiveRequest>> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        let removed = self.active.lock().remove(&self.key);
        // After the lock is released: the canceller may hold the last handle of its choices.
        drop(removed);
    }
}
