//! How models think where requests do not say so.

use std::collections::BTreeMap;

use crate::{
    cli::ThinkingArgs,
    hub::HubConfig,
    source::{ModelLocation, Source},
    thinking::{Escape, ThinkingDefaults},
};

/// Settings of all models and of single ones.
#[derive(Clone, Debug, Default)]
pub struct ThinkingConfig {
    /// Flags and the environment.
    pub flags: ThinkingArgs,
    /// By models, as --model names them: `[models.NAME]` in the config file.
    pub models: BTreeMap<String, ThinkingArgs>,
    /// `[thinking]` in the config file.
    pub file: ThinkingArgs,
}

impl ThinkingConfig {
    /// The settings of the model at this place.
    pub fn defaults(&self, location: &ModelLocation, hub: &HubConfig) -> ThinkingDefaults {
        let is_own = |name: &str| Source::find(Some(name), hub).is_ok_and(|own| own.location == *location);
        let own = self.models.iter().filter(|(name, _)| is_own(name)).map(|(_, settings)| settings);
        let layers: Vec<&ThinkingArgs> = [&self.flags].into_iter().chain(own).chain([&self.file]).collect();
        let defaults = ThinkingDefaults::default();
        let escape = layers.iter().find_map(|layer| layer.thinking_escape.as_deref());
        ThinkingDefaults {
            choice: layers.iter().find_map(|layer| layer.thinking).unwrap_or(defaults.choice),
            budget: layers.iter().find_map(|layer| layer.max_thinking_tokens).unwrap_or(defaults.budget),
            escape: escape.map_or(defaults.escape, Escape::from),
        }
    }

    /// The names in `[models.NAME]` that no model on this machine has, with the reasons.
    pub fn unknown_models(&self, hub: &HubConfig) -> Vec<(&str, String)> {
        let unknown = |name: &str| Source::find(Some(name), hub).err().map(|error| error.to_string());
        self.models.keys().filter_map(|name| Some((name.as_str(), unknown(name)?))).collect()
    }
}
