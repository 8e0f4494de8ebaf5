//! `lanner cache`: lists or clears the disk cache. A server that runs may go on writing to it.

use std::{
    io::{self, Write},
    time::UNIX_EPOCH,
};

use engine::disk_cache::{self, StoredModel};
use serde_json::{Value, json};

use super::{CommandError, models::ago};
use crate::{
    cli::DiskCacheAction,
    config::DiskCacheConfig,
    hub::megabytes,
    terminal::{say, table},
};

/// # Errors
/// The folder cannot be read, a file cannot be removed, or stdout is closed.
pub fn cache(config: &DiskCacheConfig) -> Result<(), CommandError> {
    let fail = |error: io::Error| CommandError::Cache { folder: config.folder.clone(), error };
    let mut stdout = io::stdout();
    match config.action {
        DiskCacheAction::Ls => {
            let stored = disk_cache::list(&config.folder).map_err(fail)?;
            let text = match config.json {
                true => format!("{:#}\n", Value::from_iter(stored.iter().map(to_json))),
                false => {
                    let header = [
                        "model",
                        "tokens",
                        "checkpoints",
                        "files",
                        "size",
                        "bits",
                        "last used",
                        "computed as",
                    ];
                    table(&[vec![header.map(str::to_owned)], stored.iter().map(row).collect()].concat())
                }
            };
            Ok(write!(stdout, "{text}")?)
        }
        DiskCacheAction::Clear => {
            let (files, bytes) = disk_cache::clear(&config.folder).map_err(fail)?;
            if config.json {
                writeln!(stdout, "{}", json!({ "files": files, "bytes": bytes }))?;
            } else {
                let plural = if files == 1 { "" } else { "s" };
                say(format_args!("lanner: removed {files} file{plural}, {} freed", megabytes(bytes)));
            }
            Ok(())
        }
    }
}

fn row(stored: &StoredModel) -> [String; 8] {
    [
        stored.model.clone().unwrap_or_else(|| "unreadable".into()),
        stored.tokens.to_string(),
        stored.snapshots.to_string(),
        stored.files.to_string(),
        megabytes(stored.bytes),
        stored.bits.map_or("exact".into(), |bits| u8::from(bits).to_string()),
        stored.used.map_or("never".into(), ago),
        // One model has several fingerprints if builds or options differ.
        stored.fingerprint[..8].to_owned(),
    ]
}

fn to_json(stored: &StoredModel) -> Value {
    let used = stored.used.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    json!({
        "model": stored.model,
        "fingerprint": stored.fingerprint,
        "tokens": stored.tokens,
        "checkpoints": stored.snapshots,
        "files": stored.files,
        "bytes": stored.bytes,
        // Of compressed keys and values; null: not compressed.
        "bits": stored.bits.map(u8::from),
        "used": used.map(|time| time.as_secs()),
    })
}
