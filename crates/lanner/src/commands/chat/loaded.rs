//! The model that answers, and how another one takes its place.

use std::ops::Deref;

use super::CommandError;
use crate::{
    config::ModelConfig,
    loading::OpenError,
    model::Model,
    source::{Purpose, Source},
    terminal::say,
};

/// A model whose engine stops when it is dropped.
pub(super) struct Loaded {
    model: Model,
    config: ModelConfig,
    /// Config at the start of the program; its drafters are for its model alone.
    started: ModelConfig,
}

impl Loaded {
    /// # Errors
    /// The model is not there, or a file of it cannot be read.
    pub(super) fn open(config: &ModelConfig) -> Result<Loaded, OpenError> {
        Ok(Loaded { model: Model::open(config)?, config: config.clone(), started: config.clone() })
    }

    /// Loads another model. The former one leaves before, as both may not fit into memory, and
    /// comes back if the other one cannot be loaded.
    ///
    /// # Errors
    /// There is no such model or it cannot be loaded. If the former one cannot be loaded again
    /// either, all later answers fail.
    pub(super) fn switch(&mut self, name: &str) -> Result<(), CommandError> {
        Source::locate(Some(name), &self.config.hub, Purpose::Describe).map_err(OpenError::from)?;
        let mut config = ModelConfig { model: Some(name.to_owned()), ..self.started.clone() };
        if config.model != self.started.model
            && (config.ngram_table.take(), config.draft_model.take()) != (None, None)
        {
            say("(the n-gram table and the draft model are for the first model, and are not used)");
        }
        self.model.engine.stop();
        match Model::open(&config) {
            Ok(model) => {
                (self.model, self.config) = (model, config);
                Ok(())
            }
            Err(error) => {
                self.model = Model::open(&self.config)?;
                Err(error.into())
            }
        }
    }
}

impl Deref for Loaded {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.model.engine.stop();
    }
}
