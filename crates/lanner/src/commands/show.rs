//! `lanner show`: what is known of a model on this machine, without loading it.

use std::io::Write;

use serde_json::{Value, json};

use super::CommandError;
use crate::{
    config::ShowConfig,
    hub::{HubConfig, describe_config, megabytes},
    model_files,
    source::{ModelLocation, Source},
    terminal::table,
};

/// # Errors
/// There is no such model, it is not complete, or stdout is closed.
pub fn show(hub: &HubConfig, config: &ShowConfig) -> Result<(), CommandError> {
    let source = Source::find(Some(&config.model), hub).map_err(crate::loading::OpenError::from)?;
    let described = describe(&source);
    let text = match config.json {
        true => format!("{described:#}\n"),
        false => {
            let row = |(name, value): (&String, &Value)| [name.replace('_', " "), shown(name, value)];
            table(&described.as_object().into_iter().flatten().map(row).collect::<Vec<_>>())
        }
    };
    Ok(write!(std::io::stdout(), "{text}")?)
}

fn describe(source: &Source) -> Value {
    let path = match &source.location {
        ModelLocation::Builtin => Value::Null,
        ModelLocation::Folder(path) | ModelLocation::File(path) => json!(path),
    };
    let config = model_files::config(&source.location).unwrap_or_default();
    let (family, format) = describe_config(&config).unwrap_or_else(|| ("-".into(), "-".into()));
    let text =
        |key: &str| [&config[key], &config["text_config"][key]].into_iter().find(|v| !v.is_null()).cloned();
    json!({
        "name": source.name,
        "path": path,
        "family": family,
        "format": format,
        "size_bytes": model_files::weight_bytes(&source.location),
        "context_length": text("max_position_embeddings"),
        "layers": text("num_hidden_layers"),
        "vocabulary": text("vocab_size"),
        "chat_template": model_files::template(&source.location).is_ok_and(|template| template.is_some()),
    })
}

fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Null if name == "path" => "built in".into(),
        Value::Null => "-".into(),
        Value::Bool(has) => if *has { "yes" } else { "no" }.into(),
        Value::String(text) => text.clone(),
        value if name == "size_bytes" => value.as_u64().map_or("-".into(), megabytes),
        value => value.to_string(),
    }
}
