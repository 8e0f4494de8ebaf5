//! Sums of requests by hour or day and by model.

use rusqlite::{Row, Transaction};

use crate::StoreError;

/// How requests are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Hour,
    /// Of this machine's time zone.
    Day,
}

/// Requests of one period and model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageSum {
    /// In seconds since the Unix epoch.
    pub start: i64,
    /// `2026-11-25`, in this machine's time zone.
    pub day: String,
    /// Empty: requests that need none.
    pub model: String,
    pub requests: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub reasoning_tokens: u64,
    pub drafted: u64,
    pub accepted: u64,
    pub mean_time_to_first_token_s: Option<f64>,
    /// Decoding speed of one answer, on average.
    pub tokens_per_second: Option<f64>,
}

/// Sums since a time in seconds since the Unix epoch, earliest first.
pub(crate) fn sums(state: &Transaction, period: Period, since: i64) -> Result<Vec<UsageSum>, StoreError> {
    let start = match period {
        Period::Hour => "hour * 3600",
        Period::Day => "unixepoch(date(hour * 3600, 'unixepoch', 'localtime'), 'utc')",
    };
    let mut statement = state.prepare(&format!(
        "SELECT {start}, date(min(hour) * 3600, 'unixepoch', 'localtime'), model, sum(requests), sum(failed),
                sum(cancelled), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
                sum(reasoning_tokens), sum(drafted), sum(accepted),
                sum(first_token_ms) / sum(first_tokens) / 1e3, sum(decoded) / sum(decode_ms) * 1e3
         FROM usage WHERE hour >= ?1 GROUP BY 1, model ORDER BY 1, model"
    ))?;
    let rows = statement.query_map([since.div_euclid(3600)], usage_sum)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// When the first of this many days began, in seconds since the Unix epoch.
pub(crate) fn start_of_days(state: &Transaction, count: u32) -> Result<i64, StoreError> {
    let query = "SELECT unixepoch('now', 'localtime', 'start of day', ?1, 'utc')";
    let back = format!("-{} days", count.saturating_sub(1));
    Ok(state.query_row(query, [back], |row| row.get(0))?)
}

fn usage_sum(row: &Row) -> rusqlite::Result<UsageSum> {
    let count = |at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    Ok(UsageSum {
        start: row.get(0)?,
        day: row.get(1)?,
        model: row.get(2)?,
        requests: count(3)?,
        failed: count(4)?,
        cancelled: count(5)?,
        prompt_tokens: count(6)?,
        cached_tokens: count(7)?,
        completion_tokens: count(8)?,
        reasoning_tokens: count(9)?,
        drafted: count(10)?,
        accepted: count(11)?,
        mean_time_to_first_token_s: row.get(12)?,
        tokens_per_second: row.get(13)?,
    })
}
