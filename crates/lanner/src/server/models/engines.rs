//! Engines that may still compute, so that the program can stop them before it ends.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use engine::Engine;

/// Engines of loaded models, and of unloaded ones that have requests to finish.
#[derive(Clone, Default)]
pub struct Engines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    running: Mutex<BTreeMap<u64, Engine>>,
}

impl Engines {
    pub fn register(&self, engine: &Engine) -> EngineGuard {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.lock().insert(id, engine.clone());
        EngineGuard { engines: self.clone(), id }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    pub fn stop(&self) {
        let running: Vec<Engine> = self.0.lock().values().cloned().collect();
        running.iter().for_each(Engine::stop);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Engine>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops the engine when dropped, which frees its memory.
pub struct EngineGuard {
    engines: Engines,
    id: u64,
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        let (engines, id) = (self.engines.clone(), self.id);
        // On another thread: stopping waits for the current step.
        thread::spawn(move || {
            let engine = engines.0.lock().get(&id).cloned();
            engine.iter().for_each(Engine::stop);
            // Last: until then `Engines::stop` waits for it.
            engines.0.lock().remove(&id);
        });
    }
}
