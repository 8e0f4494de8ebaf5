//! The loaded models: their names, their leases, and which may leave first.

use std::{
    cmp::Reverse,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

use super::{
    lease::ModelLease,
    names::{ModelKey, untagged},
};
use crate::{keep_alive::KeepAlive, server::Server, source::ModelLocation};

/// Most further names that a model is remembered under.
const MAX_FURTHER_NAMES: usize = 16;

/// Cheap to clone; all clones are the same models.
#[derive(Clone, Default)]
pub struct Registry(Arc<Shared>);

#[derive(Default)]
struct Shared {
    models: Mutex<Models>,
    /// A model was added, or its last lease has ended.
    changed: Notify,
}

#[derive(Default)]
struct Models {
    entries: Vec<Entry>,
    next: u64,
    /// The default model; it need not be loaded.
    default: Option<u64>,
}

struct Entry {
    id: u64,
    server: Arc<Server>,
    /// Besides the server's own.
    names: Vec<String>,
    retention: Retention,
    leases: usize,
    last_used: Instant,
}

/// When a loaded model may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    pub keep_alive: KeepAlive,
    /// It neither expires nor makes room for others.
    pub pinned: bool,
}

/// A loaded model as seen at one moment.
pub struct LoadedModel {
    pub server: Arc<Server>,
    pub names: Vec<String>,
    pub pinned: bool,
    pub is_default: bool,
    /// When it leaves if no request comes; `None`: it stays, or a request uses it.
    pub expires: Option<Instant>,
}

/// Result of an attempt to make room for another model.
pub enum Evicted {
    /// No longer in the registry, and without leases.
    Model(Arc<Server>),
    /// Each one that may leave is being used.
    AllBusy,
    /// The others are pinned, or there are none.
    NonePossible,
}

impl Registry {
    /// Adds a model, and returns its first lease.
    pub fn insert(&self, server: Server, names: Vec<String>, retention: Retention) -> ModelLease {
        let server = Arc::new(server);
        let mut models = self.lock();
        models.next += 1;
        let id = models.next;
        let entry =
            Entry { id, server: server.clone(), names, retention, leases: 1, last_used: Instant::now() };
        models.entries.push(entry);
        drop(models);
        self.0.changed.notify_one();
        ModelLease::new(self.clone(), id, server)
    }

    /// Makes a model the default; takes out the one that was, and others from the same place.
    pub fn replace_default(&self, lease: &ModelLease) -> Vec<Arc<Server>> {
        let mut models = self.lock();
        let old = models.default.replace(lease.id());
        let location = lease.model.location.as_ref();
        let leaves = |entry: &Entry| {
            let is_same = location.is_some() && entry.server.model.location.as_ref() == location;
            entry.id != lease.id() && (Some(entry.id) == old || is_same)
        };
        let (left, staying) = std::mem::take(&mut models.entries).into_iter().partition(leaves);
        models.entries = staying;
        let left: Vec<Entry> = left;
        left.into_iter().map(|entry| entry.server).collect()
    }

    /// A lease of the default model, if it is loaded.
    pub fn default_model(&self) -> Option<ModelLease> {
        self.find(ModelKey::Default)
    }

    /// A lease of the model, if it is loaded.
    pub(super) fn find(&self, key: ModelKey) -> Option<ModelLease> {
        let mut models = self.lock();
        let at = models.position(key)?;
        self.lease(models.entries.get_mut(at))
    }

    /// The model as it is now, if it is loaded; that is no use of it.
    pub(super) fn look(&self, key: ModelKey) -> Option<LoadedModel> {
        let models = self.lock();
        Some(models.seen(&models.entries[models.position(key)?]))
    }

    /// A lease of the model from this place, which then has these names too.
    pub fn find_at(&self, location: &ModelLocation, names: &[String]) -> Option<ModelLease> {
        let mut models = self.lock();
        let at = |entry: &&mut Entry| entry.server.model.location.as_ref() == Some(location);
        let entry = models.entries.iter_mut().find(at)?;
        for name in names {
            if !entry.names.contains(name) && entry.names.len() < MAX_FURTHER_NAMES {
                entry.names.push(name.clone());
            }
        }
        self.lease(Some(entry))
    }

    /// Takes out the model; its requests finish.
    pub fn remove(&self, lease: &ModelLease) {
        // Dropped without the lock: that may wait for the engine.
        let removed = self.lock().take(lease.id());
        drop(removed);
    }

    pub fn retention(&self, lease: &ModelLease) -> Option<Retention> {
        self.with(lease.id(), |entry| entry.retention)
    }

    pub fn set_retention(&self, lease: &ModelLease, retention: Retention) {
        self.with(lease.id(), |entry| entry.retention = retention);
    }

    /// Takes out the model without leases that is not pinned and was used longest ago; with
    /// `keep_default` not the default one.
    pub fn evict(&self, keep_default: bool) -> Evicted {
        let mut models = self.lock();
        let default = models.default.filter(|_| keep_default);
        let may_leave = |entry: &&Entry| !entry.retention.pinned && Some(entry.id) != default;
        let idle = |entry: &&Entry| may_leave(entry) && entry.leases == 0;
        let oldest = models.entries.iter().filter(idle).min_by_key(|entry| entry.last_used);
        match oldest.map(|entry| entry.id) {
            Some(id) => models.take(id).map_or(Evicted::NonePossible, Evicted::Model),
            None if models.entries.iter().any(|entry| may_leave(&entry)) => Evicted::AllBusy,
            None => Evicted::NonePossible,
        }
    }

    /// Takes out the models whose time is over; and when the next one's will be.
    pub fn expire(&self, now: Instant) -> (Vec<Arc<Server>>, Option<Instant>) {
        let mut models = self.lock();
        let over = |entry: &Entry| entry.expires().is_some_and(|expires| expires <= now);
        let over: Vec<u64> =
            models.entries.iter().filter(|entry| over(entry)).map(|entry| entry.id).collect();
        let expired = over.into_iter().filter_map(|id| models.take(id)).collect();
        (expired, models.entries.iter().filter_map(Entry::expires).min())
    }

    /// Waits until a model was added or became idle.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// All loaded models, the default first, then the last used.
    pub fn loaded(&self) -> Vec<LoadedModel> {
        let models = self.lock();
        let mut entries: Vec<&Entry> = models.entries.iter().collect();
        entries.sort_by_key(|entry| (Some(entry.id) != models.default, Reverse(entry.last_used)));
        entries.into_iter().map(|entry| models.seen(entry)).collect()
    }

    /// Whether the default model is loaded.
    pub fn has_default(&self) -> bool {
        self.lock().position(ModelKey::Default).is_some()
    }

    pub fn count(&self) -> usize {
        self.lock().entries.len()
    }

    pub(super) fn set_keep_alive(&self, id: u64, keep_alive: KeepAlive) {
        self.with(id, |entry| entry.retention.keep_alive = keep_alive);
    }

    pub(super) fn count_lease(&self, id: u64) {
        self.with(id, |entry| entry.leases += 1);
    }

    pub(super) fn end_lease(&self, id: u64) {
        let ended = |entry: &mut Entry| {
            entry.leases -= 1;
            entry.last_used = Instant::now();
            entry.leases == 0
        };
        if self.with(id, ended) == Some(true) {
            self.0.changed.notify_one();
        }
    }

    /// `None`: it has left.
    fn with<T>(&self, id: u64, work: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.lock().entries.iter_mut().find(|entry| entry.id == id).map(work)
    }

    fn lease(&self, entry: Option<&mut Entry>) -> Option<ModelLease> {
        let entry = entry?;
        entry.leases += 1;
        entry.last_used = Instant::now();
        Some(ModelLease::new(self.clone(), entry.id, entry.server.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Models> {
        self.0.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoadedModel {
    pub fn is_at(&self, location: &ModelLocation) -> bool {
        self.server.model.location.as_ref() == Some(location)
    }

    /// In seconds since the Unix epoch, given the time now.
    pub fn expires_at(&self, now: u64) -> Option<u64> {
        let left = self.expires?.saturating_duration_since(Instant::now());
        Some(now + left.as_secs_f64().ceil() as u64)
    }
}

impl Models {
    fn position(&self, key: ModelKey) -> Option<usize> {
        let find = |is: &dyn Fn(&Entry) -> bool| self.entries.iter().position(is);
        match key {
            ModelKey::Default => find(&|entry| Some(entry.id) == self.default),
            ModelKey::Alias(alias) => find(&|entry| entry.names.iter().any(|own| own == alias)),
            ModelKey::Name(name) => {
                find(&|entry| entry.has_name(name)).or_else(|| find(&|entry| entry.has_name(untagged(name))))
            }
        }
    }

    fn seen(&self, entry: &Entry) -> LoadedModel {
        LoadedModel {
            server: entry.server.clone(),
            names: entry.names.clone(),
            pinned: entry.retention.pinned,
            is_default: Some(entry.id) == self.default,
            expires: entry.expires(),
        }
    }

    fn take(&mut self, id: u64) -> Option<Arc<Server>> {
        let at = self.entries.iter().position(|entry| entry.id == id)?;
        Some(self.entries.swap_remove(at).server)
    }
}

impl Entry {
    fn has_name(&self, name: &str) -> bool {
        self.server.names.iter().chain(&self.names).any(|own| own == name)
    }

    fn expires(&self) -> Option<Instant> {
        if self.leases > 0 || self.retention.pinned {
            return None;
        }
        self.last_used.checked_add(self.retention.keep_alive.duration()?)
    }
}
