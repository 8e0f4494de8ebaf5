//! A request's hold on a loaded model.

use std::{ops::Deref, sync::Arc};

use super::registry::Registry;
use crate::{keep_alive::KeepAlive, server::Server};

/// Keeps a model from being evicted or from expiring while it is used. The model may be unloaded on
/// demand or replaced meanwhile; then it is freed with its last lease.
pub struct ModelLease {
    registry: Registry,
    id: u64,
    server: Arc<Server>,
}

impl ModelLease {
    /// The registry has counted it.
    pub(super) fn new(registry: Registry, id: u64, server: Arc<Server>) -> ModelLease {
        ModelLease { registry, id, server }
    }

    /// How long the model stays loaded after its last lease, `None`: as before; a pinned one stays
    /// anyway.
    pub fn set_keep_alive(&self, keep_alive: Option<KeepAlive>) {
        if let Some(keep_alive) = keep_alive {
            self.registry.set_keep_alive(self.id, keep_alive);
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

impl Clone for ModelLease {
    fn clone(&self) -> ModelLease {
        self.registry.count_lease(self.id);
        ModelLease { registry: self.registry.clone(), id: self.id, server: self.server.clone() }
    }
}

impl Deref for ModelLease {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Drop for ModelLease {
    fn drop(&mut self) {
        self.registry.end_lease(self.id);
    }
}
