//! Conversations in the file: written whole or not at all, listed latest first.

use std::collections::{HashMap, HashSet};

use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde_json::{Map, Value};

use crate::{
    Conversation, Message, Role, StoreError, Summary, Update, clock::now, conversation::title_of, pictures,
    search,
};

/// Whose conversations are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everybody's: the file's owner asks.
    All,
    /// Of one API key; empty: of requests without one.
    Owner(String),
}

/// A part of a list, and where the next one begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<Cursor>,
}

/// The last conversation before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub(crate) updated: i64,
    pub(crate) number: i64,
}

pub(crate) const SUMMARY: &str = "number, id, title, created, updated, owner,
    (SELECT count(*) FROM message WHERE conversation = conversation.number),
    (SELECT model FROM message WHERE conversation = conversation.number AND model IS NOT NULL
     ORDER BY number DESC LIMIT 1)";

impl Cursor {
    pub(crate) const START: Cursor = Cursor { updated: i64::MAX, number: i64::MAX };

    /// Reads what [`Display`](std::fmt::Display) writes.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<Cursor, StoreError> {
        let parsed = text.split_once('-').and_then(|(updated, number)| {
            Some(Cursor { updated: updated.parse().ok()?, number: number.parse().ok()? })
        });
        parsed.ok_or_else(|| StoreError::invalid("after", "send the `next` of the page before"))
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}-{}", self.updated, self.number)
    }
}

impl Scope {
    pub(crate) fn owner(&self) -> Option<&str> {
        match self {
            Scope::All => None,
            Scope::Owner(owner) => Some(owner),
        }
    }
}

pub(crate) fn rename(
    transaction: &Transaction,
    scope: &Scope,
    id: &str,
    title: &str,
) -> Result<Summary, StoreError> {
    let number = find(transaction, scope, id)?;
    transaction.execute("UPDATE conversation SET title = ?2 WHERE number = ?1", params![number, title])?;
    search::reindex(transaction, number)?;
    read_summary(transaction, number)
}

pub(crate) fn remove(transaction: &Transaction, scope: &Scope, id: &str) -> Result<(), StoreError> {
    remove_number(transaction, find(transaction, scope, id)?)
}

pub(crate) fn remove_all(transaction: &Transaction, scope: &Scope) -> Result<usize, StoreError> {
    let mut statement =
        transaction.prepare("SELECT number FROM conversation WHERE ?1 IS NULL OR owner = ?1")?;
    let rows = statement.query_map([scope.owner()], |row| row.get(0))?;
    let numbers: Vec<i64> = rows.collect::<Result<_, _>>()?;
    numbers.iter().try_for_each(|number| remove_number(transaction, *number))?;
    Ok(numbers.len())
}

/// About the bytes of a conversation as JSON.
pub(crate) fn bytes(state: &Transaction, scope: &Scope, id: &str) -> Result<usize, StoreError> {
    let number = find(state, scope, id)?;
    let bytes: f64 = state.query_row(
        "SELECT total(octet_length(text) + 300 + coalesce(octet_length(reasoning), 0)
             + coalesce(octet_length(tool_calls), 0) + coalesce(octet_length(usage), 0)
             + coalesce(octet_length(other), 0)) FROM message WHERE conversation = ?1",
        [number],
        |row| row.get(0),
    )?;
    Ok(bytes as usize + pictures::bytes(state, number)?)
}

/// The id of the only conversation whose id begins like this, or of the latest one if it is empty.
pub(crate) fn find_start(state: &Transaction, scope: &Scope, start: &str) -> Result<String, StoreError> {
    let mut statement = state.prepare(
        "SELECT id FROM conversation WHERE (?1 IS NULL OR owner = ?1) AND substr(id, 1, length(?2)) = ?2
         ORDER BY id <> ?2, updated DESC, number DESC LIMIT 2",
    )?;
    let ids = statement.query_map(params![scope.owner(), start], |row| row.get(0))?;
    let ids: Vec<String> = ids.collect::<Result<_, _>>()?;
    match &ids[..] {
        [] if start.is_empty() => Err(StoreError::Empty),
        [] => Err(StoreError::NotFound(start.into())),
        [id, ..] if start.is_empty() || id == start => Ok(id.clone()),
        [id] => Ok(id.clone()),
        _ => Err(StoreError::Ambiguous(start.into())),
    }
}

/// Conversations after the cursor, latest first.
pub(crate) fn list(
    state: &Transaction,
    scope: &Scope,
    after: Cursor,
    limit: usize,
) -> Result<Page<Summary>, StoreError> {
    let owned = if scope.owner().is_some() { "owner = ?1 AND" } else { "?1 IS NULL AND" };
    let mut statement = state.prepare(&format!(
        "SELECT {SUMMARY} FROM conversation WHERE {owned} (updated, number) < (?2, ?3)
         ORDER BY updated DESC, number DESC LIMIT ?4"
    ))?;
    let values = params![scope.owner(), after.updated, after.number, limit as i64 + 1];
    let rows = statement.query_map(values, summary)?.collect::<Result<_, _>>()?;
    Ok(page(rows, limit))
}

/// Cuts a list that has one more than a page.
pub(crate) fn page(mut rows: Vec<(Cursor, Summary)>, limit: usize) -> Page<Summary> {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(|(cursor, _)| *cursor);
    Page { items: rows.into_iter().map(|(_, summary)| summary).collect(), next }
}

/// A row of [`SUMMARY`].
pub(crate) fn summary(row: &Row) -> rusqlite::Result<(Cursor, Summary)> {
    let summary = Summary {
        id: row.get(1)?,
        title: row.get(2)?,
        created: row.get(3)?,
        updated: row.get(4)?,
        owner: row.get(5)?,
        messages: row.get::<_, i64>(6)?.unsigned_abs(),
        model: row.get(7)?,
        snippet: None,
    };
    Ok((Cursor { updated: summary.updated, number: row.get(0)? }, summary))
}

fn read_summary(state: &Transaction, number: i64) -> Result<Summary, StoreError> {
    let query = format!("SELECT {SUMMARY} FROM conversation WHERE number = ?1");
    Ok(state.query_row(&query, [number], summary)?.1)
}

fn find(state: &Transaction, scope: &Scope, id: &str) -> Result<i64, StoreError> {
    let found = state.query_row(
        "SELECT number FROM conversation WHERE id = ?2 AND (?1 IS NULL OR owner = ?1)
         ORDER BY updated DESC LIMIT 1",
        params![scope.owner(), id],
        |row| row.get(0),
    );
    found.optional()?.ok_or_else(|| StoreError::NotFound(id.into()))
}

fn remove_number(transaction: &Transaction, number: i64) -> Result<(), StoreError> {
    search::unindex(transaction, number)?;
    // Messages follow by the foreign key.
    transaction.execute("DELETE FROM conversation WHERE number = ?1", [number])?;
    Ok(())
}

/// Makes a conversation or changes it.
pub(crate) fn put(
    transaction: &Transaction,
    owner: &str,
    id: &str,
    update: &Update,
) -> Result<Summary, StoreError> {
    let stored = transaction.query_row(
        "SELECT number, title FROM conversation WHERE owner = ?1 AND id = ?2",
        params![owner, id],
        |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)),
    );
    let stored = stored.optional()?;
    let is_renamed =
        stored.as_ref().is_none_or(|(_, old)| update.title.as_ref().is_some_and(|new| new != old));
    let number = match stored {
        Some((number, _)) => number,
        None => create(transaction, owner, id, update)?,
    };
    let known = known_messages(transaction, number)?;
    let in_order = in_order(&update.messages, &known)?;
    let indexer = search::Indexer::new(transaction, number, known.is_empty())?;
    let mut is_edited = false;
    for message in &in_order {
        is_edited |= put_message(transaction, number, message, known.contains_key(&*message.id))?;
    }
    if let Some(leaf) = &update.leaf
        && !known.contains_key(leaf)
        && !update.messages.iter().any(|message| message.id == *leaf)
    {
        return Err(StoreError::invalid("leaf", format!("the conversation has no message `{leaf}`")));
    }
    transaction.execute(
        "UPDATE conversation SET title = coalesce(?2, title), leaf = coalesce(?3, leaf),
             settings = coalesce(?4, settings), updated = max(updated, ?5) WHERE number = ?1",
        params![
            number,
            update.title,
            update.leaf,
            update.settings.as_ref().map(to_json).transpose()?,
            update.updated.unwrap_or_else(now)
        ],
    )?;
    match is_edited || is_renamed {
        true => search::reindex(transaction, number)?,
        false => indexer.add(in_order.iter().map(|message| &*message.text))?,
    }
    read_summary(transaction, number)
}

fn create(transaction: &Transaction, owner: &str, id: &str, update: &Update) -> Result<i64, StoreError> {
    let first = update.messages.iter().find(|message| message.parent.is_none());
    let title = update.title.clone().unwrap_or_else(|| title_of(first.map_or("", |first| &*first.text)));
    let created = update.created.unwrap_or_else(now);
    transaction.execute(
        "INSERT INTO conversation (owner, id, title, created, updated, settings) VALUES (?1, ?2, ?3, ?4, ?4, '{}')",
        params![owner, id, title, created],
    )?;
    Ok(transaction.last_insert_rowid())
}

/// Ids of the stored messages, with their parents.
fn known_messages(state: &Transaction, number: i64) -> Result<HashMap<String, Option<String>>, StoreError> {
    let mut statement = state.prepare("SELECT id, parent FROM message WHERE conversation = ?1")?;
    let rows = statement.query_map([number], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The messages, parents first: so a tree has neither circles nor loose ends.
fn in_order<'a>(
    messages: &'a [Message],
    known: &HashMap<String, Option<String>>,
) -> Result<Vec<&'a Message>, StoreError> {
    let mut children: HashMap<&str, Vec<&Message>> = HashMap::new();
    let mut ready: Vec<&Message> = vec![];
    for message in messages {
        let field = || format!("messages.{}.parent", message.id);
        match (known.get(&message.id), &message.parent) {
            (Some(stored), parent) if stored != parent => {
                return Err(StoreError::invalid(
                    field(),
                    "a stored message keeps its parent; send a new message",
                ));
            }
            (Some(_), _) | (None, None) => ready.push(message),
            (None, Some(parent)) if known.contains_key(parent) => ready.push(message),
            (None, Some(parent)) => children.entry(parent).or_default().push(message),
        }
    }
    let mut at = 0;
    while let Some(&message) = ready.get(at) {
        ready.extend(children.remove(&*message.id).unwrap_or_default());
        at += 1;
    }
    let placed: HashSet<&str> = ready.iter().map(|message| &*message.id).collect();
    match messages.iter().find(|message| !placed.contains(&*message.id)) {
        None => Ok(ready),
        Some(message) => {
            let field = format!("messages.{}.parent", message.id);
            Err(StoreError::invalid(
                field,
                "it names no message of the conversation that leads to a first one",
            ))
        }
    }
}

/// Returns whether a stored message has lost words: one without any was the start of an answer.
fn put_message(
    transaction: &Transaction,
    conversation: i64,
    message: &Message,
    is_known: bool,
) -> Result<bool, StoreError> {
    let is_edited = is_known && {
        let stored: String = transaction.query_row(
            "SELECT text FROM message WHERE conversation = ?1 AND id = ?2",
            params![conversation, message.id],
            |row| row.get(0),
        )?;
        !stored.is_empty() && stored != message.text
    };
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let other = pictures::without(&message.other);
    transaction.execute(
        "INSERT INTO message (conversation, id, parent, role, text, created, reasoning, model, tool_calls,
             usage, other)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT DO UPDATE SET role = excluded.role, text = excluded.text, created = excluded.created,
             reasoning = excluded.reasoning, model = excluded.model, tool_calls = excluded.tool_calls,
             usage = excluded.usage, other = excluded.other",
        params![
            conversation,
            message.id,
            message.parent,
            role,
            message.text,
            message.created,
            message.reasoning,
            message.model,
            message.tool_calls.as_ref().map(to_json).transpose()?,
            message.usage.as_ref().map(to_json).transpose()?,
            (!other.is_empty()).then(|| to_json(&other)).transpose()?,
        ],
    )?;
    pictures::put(transaction, conversation, &message.id, &message.other)?;
    Ok(is_edited)
}

pub(crate) fn read(state: &Transaction, scope: &Scope, id: &str) -> Result<Conversation, StoreError> {
    let number = find(state, scope, id)?;
    let mut conversation = state.query_row(
        "SELECT id, title, created, updated, leaf, settings FROM conversation WHERE number = ?1",
        [number],
        |row| {
            Ok(Conversation {
                id: row.get(0)?,
                title: row.get(1)?,
                created: row.get(2)?,
                updated: row.get(3)?,
                leaf: row.get(4)?,
                messages: vec![],
                settings: from_json::<Map<String, Value>>(Some(row.get(5)?)).unwrap_or_default(),
            })
        },
    )?;
    let mut statement = state.prepare(
        "SELECT id, parent, role, text, created, reasoning, model, tool_calls, usage, other FROM message
         WHERE conversation = ?1 ORDER BY number",
    )?;
    let rows = statement.query_map([number], |row| {
        Ok(Message {
            id: row.get(0)?,
            parent: row.get(1)?,
            role: match &*row.get::<_, String>(2)? {
                "assistant" => Role::Assistant,
                "tool" => Role::Tool,
                _ => Role::User,
            },
            text: row.get(3)?,
            created: row.get(4)?,
            reasoning: row.get(5)?,
            model: row.get(6)?,
            tool_calls: from_json(row.get(7)?),
            usage: from_json(row.get(8)?),
            other: from_json(row.get(9)?).unwrap_or_default(),
        })
    })?;
    conversation.messages = rows.collect::<Result<_, _>>()?;
    let mut pictures = pictures::read(state, number)?;
    for message in &mut conversation.messages {
        if let Some(own) = pictures.remove(&message.id) {
            pictures::restore(&mut message.other, own);
        }
    }
    Ok(conversation)
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::invalid("messages", error.to_string()))
}

/// `None` also if it is not valid: the rest of the conversation is worth more.
fn from_json<T: serde::de::DeserializeOwned>(text: Option<String>) -> Option<T> {
    serde_json::from_str(&text?).ok()
}
