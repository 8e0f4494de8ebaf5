//! Requests being generated, by id, so that they can be cancelled from another connection.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::tenant::Client;

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
    client: Client,
    cancel: CancelFn,
}

/// Cancels what answers a request.
pub(super) type CancelFn = Box<dyn Fn() + Send + Sync>;

/// Removes the request from the list when dropped.
pub(super) struct ActiveGuard {
    active: ActiveRequests,
    key: u64,
}

impl ActiveRequests {
    pub(super) fn insert(&self, ids: [String; 2], client: Client, cancel: CancelFn) -> ActiveGuard {
        let key = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(key, ActiveRequest { ids, client, cancel });
        ActiveGuard { active: self.clone(), key }
    }

    /// Cancels all of the client's requests with this id; returns how many there were.
    pub(super) fn cancel(&self, id: &str, client: &Client) -> usize {
        let requests = self.lock();
        let own = requests.values().filter(|request| request.client == *client);
        let named = own.filter(|request| request.ids.iter().any(|own| own == id));
        named.map(|request| (request.cancel)()).count()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, ActiveRequest>> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        let removed = self.active.lock().remove(&self.key);
        // After the lock is released: `cancel` may hold the last handle of its choices.
        drop(removed);
    }
}
