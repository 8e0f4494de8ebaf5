//! `lanner history`: conversations of `lanner chat` and of the web page, of all API keys.

use std::{
    fs,
    io::{BufRead, IsTerminal, Write},
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::json;
use store::{Conversation, Scope, Store, Summary, from_json, to_json, to_markdown};

use super::{CommandError, models::ago};
use crate::{
    config::{ExportFormat, HistoryAction, HistoryConfig},
    terminal::{one_line, say, table},
};

/// Characters of an id that the table shows; the start of an id is enough for all commands.
const SHORT_ID: usize = 12;
/// Conversations that are read at a time.
const PAGE: usize = 500;
/// Bytes of a file to import.
const LARGEST_FILE: u64 = 1 << 30;
const ALL: Scope = Scope::All;

/// # Errors
/// There is no store or no such conversation, or a file cannot be read or written.
pub fn history(config: &HistoryConfig) -> Result<(), CommandError> {
    if let HistoryAction::Import { file } = &config.action {
        return import(&config.store, file);
    }
    let store = open(&config.store)?;
    match &config.action {
        HistoryAction::List { words, limit, json } => list(&store, words, *limit, *json),
        HistoryAction::Show { id, json } => show(&store, id.as_deref(), *json),
        HistoryAction::Export { ids, format, out } => export(&store, ids, *format, out.as_deref()),
        HistoryAction::Rename { id, title } => {
            store.rename(&ALL, &store.find(&ALL, Some(id))?, title)?;
            Ok(())
        }
        HistoryAction::Remove { ids } => remove(&store, ids),
        HistoryAction::RemoveAll { yes } => remove_all(&store, *yes),
        HistoryAction::Import { .. } => Ok(()),
    }
}

/// Opens a store that is there.
pub(super) fn open(path: &Path) -> Result<Store, CommandError> {
    let opening = Store::open_existing(path)?.ok_or_else(|| CommandError::NoStore(path.into()))?;
    opening.notice.iter().for_each(|notice| say(format_args!("lanner: warning: {notice}")));
    Ok(opening.store)
}

fn list(store: &Store, words: &str, limit: usize, as_json: bool) -> Result<(), CommandError> {
    let summaries = summaries(store, words, limit)?;
    let text = match as_json {
        true => {
            let rows = summaries.iter().map(|summary| {
                let mut row = json!(summary);
                row["key"] = summary.owner.clone().into();
                row
            });
            format!("{:#}\n", serde_json::Value::from_iter(rows))
        }
        false => {
            let header = ["id", "changed", "messages", "model", "title"].map(str::to_owned);
            table(&[vec![header], summaries.iter().map(row).collect()].concat())
        }
    };
    Ok(write!(std::io::stdout(), "{text}")?)
}

/// The latest conversations, or those that have all words.
pub(super) fn summaries(store: &Store, words: &str, limit: usize) -> Result<Vec<Summary>, CommandError> {
    let (mut found, mut after) = (vec![], None);
    while found.len() < limit {
        let most = (limit - found.len()).min(PAGE);
        let page = match words.trim() {
            "" => store.list(&ALL, after, most)?,
            words => store.search(&ALL, words, after, most)?,
        };
        found.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(found)
}

pub(super) fn row(summary: &Summary) -> [String; 5] {
    let updated = UNIX_EPOCH + Duration::from_millis(summary.updated.unsigned_abs());
    [
        summary.id.chars().take(SHORT_ID).collect(),
        ago(updated),
        summary.messages.to_string(),
        summary.model.clone().unwrap_or_else(|| "-".into()),
        // A title is one line of text, whatever a client has made of it.
        one_line(&summary.title),
    ]
}

fn show(store: &Store, id: Option<&str>, as_json: bool) -> Result<(), CommandError> {
    let conversation = store.conversation(&ALL, &store.find(&ALL, id)?)?;
    let mut stdout = std::io::stdout();
    match as_json {
        true => writeln!(stdout, "{:#}", json!(conversation))?,
        false => write!(stdout, "{}", to_markdown(&conversation))?,
    }
    Ok(())
}

fn export(
    store: &Store,
    ids: &[String],
    format: ExportFormat,
    out: Option<&Path>,
) -> Result<(), CommandError> {
    let ids: Vec<String> = match ids {
        [] => summaries(store, "", usize::MAX)?.into_iter().map(|summary| summary.id).collect(),
        ids => ids.iter().map(|id| store.find(&ALL, Some(id))).collect::<Result<_, _>>()?,
    };
    let conversations = ids.iter().map(|id| store.conversation(&ALL, id));
    let conversations: Vec<Conversation> = conversations.collect::<Result<_, _>>()?;
    let text = match format {
        ExportFormat::Json => to_json(&conversations)? + "\n",
        ExportFormat::Markdown => conversations.iter().map(to_markdown).collect::<Vec<_>>().join("\n"),
    };
    match out {
        None => Ok(write!(std::io::stdout(), "{text}")?),
        Some(path) => {
            fs::write(path, text).map_err(|error| CommandError::Write { path: path.into(), error })?;
            say(format_args!("lanner: wrote {} to {}", count(conversations.len()), path.display()));
            Ok(())
        }
    }
}

fn import(store: &Path, file: &Path) -> Result<(), CommandError> {
    let read = |error| CommandError::Read { path: file.into(), error };
    let conversations = from_json(&files::read_text(file, LARGEST_FILE).map_err(read)?)?;
    let opening = Store::open(store)?;
    opening.notice.iter().for_each(|notice| say(format_args!("lanner: warning: {notice}")));
    let imported = opening.store.import("", conversations)?;
    say(format_args!("lanner: imported {}", count(imported)));
    Ok(())
}

fn remove(store: &Store, ids: &[String]) -> Result<(), CommandError> {
    // All of them are found before one is removed.
    let ids = ids.iter().map(|id| store.find(&ALL, Some(id))).collect::<Result<Vec<String>, _>>()?;
    ids.iter().try_for_each(|id| store.remove(&ALL, id))?;
    say(format_args!("lanner: removed {}", count(ids.len())));
    Ok(())
}

fn remove_all(store: &Store, yes: bool) -> Result<(), CommandError> {
    if !yes {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Err(CommandError::NoConfirmation("all conversations".into()));
        }
        write!(std::io::stderr(), "Remove all conversations? [y/N] ")?;
        let mut answer = String::new();
        stdin.lock().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(CommandError::NotRemoved("no conversation".into()));
        }
    }
    say(format_args!("lanner: removed {}", count(store.remove_all(&ALL)?)));
    Ok(())
}

fn count(conversations: usize) -> String {
    format!("{conversations} conversation{}", if conversations == 1 { "" } else { "s" })
}
