//! `lanner models`: lists the models on this machine.

use std::{
    io::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use super::CommandError;
use crate::{
    builtin::BUILTIN,
    catalog::CATALOG,
    config::ModelsConfig,
    hub::{CachedModel, HubConfig, LastUsed, describe_config, megabytes, scan},
    terminal::table,
};

/// # Errors
/// There is no folder for models, or stdout is closed.
pub fn models(hub: &HubConfig, config: &ModelsConfig) -> Result<(), CommandError> {
    let text = match config {
        ModelsConfig::Catalog => table(
            &CATALOG
                .iter()
                .map(|entry| [entry.name, entry.repo, entry.description].map(str::to_owned))
                .collect::<Vec<_>>(),
        ),
        ModelsConfig::Json => {
            let models = cached(hub)?;
            let rows: Vec<Value> =
                std::iter::once(builtin_json()).chain(models.iter().map(to_json)).collect();
            format!("{:#}\n", Value::Array(rows))
        }
        ModelsConfig::Table => {
            let header =
                ["model", "revision", "size", "family", "format", "last used", "complete"].map(str::to_owned);
            let models = cached(hub)?;
            table(&[vec![header, builtin_row()], models.iter().map(row).collect()].concat())
        }
    };
    Ok(write!(std::io::stdout(), "{text}")?)
}

pub(super) fn cached(hub: &HubConfig) -> Result<Vec<CachedModel>, CommandError> {
    Ok(scan(&hub.cache()?, &LastUsed(hub.uses.clone())))
}

fn row(model: &CachedModel) -> [String; 7] {
    [
        model.repo.to_string(),
        match &model.refs[..] {
            [] => model.commit[..8].to_owned(),
            refs => refs.join(", "),
        },
        megabytes(model.size),
        model.family.clone(),
        model.format.clone(),
        model.last_used.map_or("never".into(), ago),
        model.missing.as_ref().map_or("yes".into(), |missing| {
            // A hint does not fit into the table.
            format!("no: {}", missing.to_string().lines().next().unwrap_or_default())
        }),
    ]
}

fn to_json(model: &CachedModel) -> Value {
    json!({
        "name": model.repo.to_string(),
        "revision": model.commit,
        "refs": model.refs,
        "path": model.path,
        "size_bytes": model.size,
        "family": model.family,
        "format": model.format,
        "last_used": model.last_used.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())),
        "complete": model.missing.is_none(),
        "missing": model.missing.as_ref().map(ToString::to_string),
    })
}

fn builtin_row() -> [String; 7] {
    let (family, format) = builtin_description();
    let size = megabytes(BUILTIN.weights.len() as u64);
    [BUILTIN.name, "built in", &size, &family, &format, "-", "yes"].map(str::to_owned)
}

fn builtin_json() -> Value {
    let (family, format) = builtin_description();
    json!({
        "name": BUILTIN.name, "revision": null, "refs": [], "path": null, "size_bytes": BUILTIN.weights.len(),
        "family": family, "format": format, "last_used": null, "complete": true, "missing": null,
    })
}

fn builtin_description() -> (String, String) {
    let config = serde_json::from_str(BUILTIN.config).unwrap_or(Value::Null);
    describe_config(&config).unwrap_or_default()
}

pub(super) fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or(Duration::ZERO).as_secs();
    let (count, unit) = match seconds {
        0..60 => return "just now".into(),
        60..3600 => (seconds / 60, "minute"),
        3600..86400 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ago_uses_the_largest_unit() {
        for (seconds, expected) in
            [(3, "just now"), (60, "1 minute ago"), (7200, "2 hours ago"), (86400 * 40, "40 days ago")]
        {
            assert_eq!(ago(SystemTime::now() - Duration::from_secs(seconds)), expected);
        }
    }
}
