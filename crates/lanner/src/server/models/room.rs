//! Room for a model before it is loaded: models without requests leave, the one used longest ago
//! first. The engines' memory account decides what fits; prefix caches yield to a load by
//! themselves.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use engine::{LoadError, WhenFull};

use super::registry::Evicted;
use crate::{
    bench::machine,
    config::ModelConfig,
    loading::OpenError,
    model::Model,
    model_files,
    server::{app_state::AppState, openai::error::ApiError},
    source::{ModelLocation, Source},
};

/// How long a load waits for models that are being used.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// `Retry-After` if there is no room.
pub(crate) const NO_ROOM_RETRY_AFTER: Duration = Duration::from_secs(5);

impl AppState {
    /// Opens a model once there is room for it; `replaces` spares the default model, which leaves
    /// afterwards.
    ///
    /// # Errors
    /// It cannot be opened. 503: there is no room, and nothing can make some in time.
    pub(super) fn open_in_room(
        &self,
        source: &Source,
        config: &ModelConfig,
        replaces: bool,
    ) -> Result<Model, ApiError> {
        let deadline = Instant::now() + PATIENCE;
        self.make_place(&source.name, replaces, deadline)?;
        self.fit_machine(source, replaces);
        loop {
            match Model::open_at(source.clone(), config, &self.loads().stopped) {
                Err(OpenError::Load { error: LoadError::MemoryFull { .. }, .. })
                    if self.free_some(replaces, deadline) => {}
                Ok(model) => return Ok(model),
                Err(error) => return Err(ApiError::from_open(&error)),
            }
        }
    }

    /// Evicts models until one more may be loaded.
    fn make_place(&self, name: &str, replaces: bool, deadline: Instant) -> Result<(), ApiError> {
        let Some(most) = self.settings().max_loaded else { return Ok(()) };
        while self.registry().count() - usize::from(replaces && self.registry().has_default()) >= most {
            if !self.free_some(replaces, deadline) {
                let message = format!(
                    "cannot load {name}: {most} loaded models are the most allowed (--max-loaded-models), and each is \
                     pinned or in use; try again later, or unload one"
                );
                let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).param("model");
                return Err(ApiError {
                    retry_after: Some(NO_ROOM_RETRY_AFTER),
                    ..error.code("too_many_models")
                });
            }
        }
        Ok(())
    }

    /// Without a limit, weights should fit into most of the machine's memory; idle models leave for
    /// that, and nothing waits.
    fn fit_machine(&self, source: &Source, replaces: bool) {
        let (None, Some(machine)) = (self.memory_limit(), machine::memory()) else { return };
        let account = &self.common().metrics.account;
        let needs = match source.location {
            // Part of the program.
            ModelLocation::Builtin => 0,
            _ => model_files::weight_bytes(&source.location) as usize,
        };
        while account.promised().saturating_add(needs) > machine / 10 * 9
            && matches!(self.evict_idle(replaces), Evicted::Model(_))
        {}
    }

    /// Frees memory, or waits until some is free; `false` if that cannot be or takes too long.
    fn free_some(&self, replaces: bool, deadline: Instant) -> bool {
        let waits = self.config().options.when_full == WhenFull::Wait;
        loop {
            let engines = self.engines().count();
            let busy = match self.evict_idle(replaces) {
                Evicted::Model(_) => return true,
                Evicted::AllBusy => true,
                // Unloaded ones may have requests to finish.
                Evicted::NonePossible => engines > self.registry().count(),
            };
            let stopped = self.loads().stopped.load(Ordering::Relaxed);
            if !busy || !waits || stopped || Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL);
            if self.engines().count() < engines {
                return true;
            }
        }
    }

    /// Evicts a model, and waits until its memory is free.
    fn evict_idle(&self, replaces: bool) -> Evicted {
        let evicted = self.registry().evict(replaces);
        if let Evicted::Model(server) = &evicted {
            tracing::info!("unloading {}: its memory is needed", server.name());
            server.engine().stop();
        }
        evicted
    }
}
