//! `lanner paths`: where data lies.

use std::io::Write;

use serde_json::{Map, Value};

use super::CommandError;
use crate::{
    config::{DataPath, PathsConfig},
    terminal::table,
};

/// # Errors
/// stdout is closed.
pub fn paths(config: &PathsConfig) -> Result<(), CommandError> {
    let show = |path: &DataPath| path.path.as_ref().map(|path| path.display().to_string());
    let text = match config.json {
        true => {
            let entry = |path: &DataPath| (path.name.to_owned(), show(path).into());
            format!("{:#}\n", Value::Object(Map::from_iter(config.paths.iter().map(entry))))
        }
        false => {
            let row = |path: &DataPath| {
                let shown = show(path).unwrap_or_else(|| "-".into());
                [path.name.to_owned(), shown, path.description.to_owned()]
            };
            table(&config.paths.iter().map(row).collect::<Vec<_>>())
        }
    };
    Ok(write!(std::io::stdout(), "{text}")?)
}
