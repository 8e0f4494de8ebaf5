//! Figures of requests: one row for each, as many as the limits allow, and sums by hour and model
//! that stay longer. Holds no text of a request or an answer.

use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};
use serde::Serialize;

use crate::{Limits, StoreError, clock::now};

const HOUR_MS: i64 = 3_600_000;

/// Figures of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RequestRecord {
    /// When it arrived, in milliseconds since the Unix epoch.
    pub at: i64,
    /// Of the header `x-request-id`.
    pub id: String,
    /// Method and path.
    pub route: String,
    /// 0: the client left before the answer.
    pub status: u16,
    /// How a completion ended; empty for other requests.
    pub outcome: String,
    /// Empty: none.
    pub model: String,
    /// Name of the API key; empty: none.
    pub key: String,
    pub finish_reason: String,
    /// Why not more of the prompt was reused; empty: all was, or the request has no prompt.
    pub cache_miss: String,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub reasoning_tokens: u64,
    pub drafted: u64,
    pub accepted: u64,
    pub time_to_first_token_ms: Option<f64>,
    /// Time from the first to the last token.
    pub decode_ms: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub duration_ms: f64,
}

impl RequestRecord {
    /// Whether the server or the request was at fault; a client that left is none.
    fn has_failed(&self) -> bool {
        match &*self.outcome {
            "answered" | "replayed" | "cancelled" => false,
            "" => self.status >= 400,
            _ => true,
        }
    }
}

/// The latest requests, latest first.
pub(crate) fn latest(state: &Transaction, limit: usize) -> Result<Vec<RequestRecord>, StoreError> {
    let mut statement = state.prepare(
        "SELECT at, id, route, status, outcome, model, key, finish, miss, prompt_tokens, cached_tokens,
                completion_tokens, reasoning_tokens, drafted, accepted, first_token_ms, decode_ms,
                tokens_per_second, duration_ms
         FROM request ORDER BY number DESC LIMIT ?1",
    )?;
    let rows = statement.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], record)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn record(row: &Row) -> rusqlite::Result<RequestRecord> {
    let count = |at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    Ok(RequestRecord {
        at: row.get(0)?,
        id: row.get(1)?,
        route: row.get(2)?,
        status: row.get(3)?,
        outcome: row.get(4)?,
        model: row.get(5)?,
        key: row.get(6)?,
        finish_reason: row.get(7)?,
        cache_miss: row.get(8)?,
        prompt_tokens: count(9)?,
        cached_tokens: count(10)?,
        completion_tokens: count(11)?,
        reasoning_tokens: count(12)?,
        drafted: count(13)?,
        accepted: count(14)?,
        time_to_first_token_ms: row.get(15)?,
        decode_ms: row.get(16)?,
        tokens_per_second: row.get(17)?,
        duration_ms: row.get(18)?,
    })
}

/// Adds records in one transaction, and removes those beyond the limits.
pub(crate) fn insert(
    connection: &mut Connection,
    records: &[RequestRecord],
    limits: Limits,
) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    add_rows(&transaction, records)?;
    add_sums(&transaction, records)?;
    let before = |age: std::time::Duration| now() - i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
    transaction.execute("DELETE FROM request WHERE at < ?1", [before(limits.request_age)])?;
    transaction.execute(
        "DELETE FROM request WHERE number <= (SELECT max(number) FROM request) - ?1",
        [limits.requests],
    )?;
    transaction.execute("DELETE FROM usage WHERE hour < ?1", [before(limits.usage_age) / HOUR_MS])?;
    Ok(transaction.commit()?)
}

fn add_rows(transaction: &Transaction, records: &[RequestRecord]) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare(
        "INSERT INTO request (at, id, route, status, outcome, model, key, finish, miss, prompt_tokens,
             cached_tokens, completion_tokens, reasoning_tokens, drafted, accepted, first_token_ms, decode_ms,
             tokens_per_second, duration_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
    )?;
    for record in records {
        statement.execute(params![
            record.at,
            record.id,
            record.route,
            record.status,
            record.outcome,
            record.model,
            record.key,
            record.finish_reason,
            record.cache_miss,
            record.prompt_tokens as i64,
            record.cached_tokens as i64,
            record.completion_tokens as i64,
            record.reasoning_tokens as i64,
            record.drafted as i64,
            record.accepted as i64,
            record.time_to_first_token_ms,
            record.decode_ms,
            record.tokens_per_second,
            record.duration_ms,
        ])?;
    }
    Ok(())
}

fn add_sums(transaction: &Transaction, records: &[RequestRecord]) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare(
        "INSERT INTO usage (hour, model, requests, failed, cancelled, prompt_tokens, cached_tokens,
             completion_tokens, reasoning_tokens, drafted, accepted, first_tokens, first_token_ms, decoded,
             decode_ms, duration_ms)
         VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
         ON CONFLICT DO UPDATE SET
             requests = requests + 1, failed = failed + excluded.failed,
             cancelled = cancelled + excluded.cancelled,
             prompt_tokens = prompt_tokens + excluded.prompt_tokens,
             cached_tokens = cached_tokens + excluded.cached_tokens,
             completion_tokens = completion_tokens + excluded.completion_tokens,
             reasoning_tokens = reasoning_tokens + excluded.reasoning_tokens,
             drafted = drafted + excluded.drafted, accepted = accepted + excluded.accepted,
             first_tokens = first_tokens + excluded.first_tokens,
             first_token_ms = first_token_ms + excluded.first_token_ms,
             decoded = decoded + excluded.decoded, decode_ms = decode_ms + excluded.decode_ms,
             duration_ms = duration_ms + excluded.duration_ms",
    )?;
    for record in records {
        let decode_ms = record.decode_ms.filter(|_| record.tokens_per_second.is_some()).unwrap_or(0.0);
        statement.execute(params![
            record.at / HOUR_MS,
            record.model,
            record.has_failed(),
            record.outcome == "cancelled",
            record.prompt_tokens as i64,
            record.cached_tokens as i64,
            record.completion_tokens as i64,
            record.reasoning_tokens as i64,
            record.drafted as i64,
            record.accepted as i64,
            record.time_to_first_token_ms.is_some(),
            record.time_to_first_token_ms.unwrap_or(0.0),
            record.tokens_per_second.unwrap_or(0.0) * decode_ms / 1e3,
            decode_ms,
            record.duration_ms,
        ])?;
    }
    Ok(())
}
