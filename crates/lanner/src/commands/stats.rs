//! `lanner stats`: what servers have answered, by day and model, or request by request.

use std::{
    io::Write,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::{Value, json};
use store::{RequestRecord, UsageSum};

use super::{CommandError, history, models::ago};
use crate::{config::UsageConfig, server::history::usage_sum, terminal::table};

/// # Errors
/// There is no store, it cannot be read, or stdout is closed.
pub fn stats(config: &UsageConfig) -> Result<(), CommandError> {
    let store = history::open(&config.store)?;
    let text = match config.requests {
        Some(count) => requests(&store.requests(count)?, config.json),
        None => {
            let days = store.days(config.days)?;
            usage(&days, config.json)
        }
    };
    Ok(write!(std::io::stdout(), "{text}")?)
}

fn usage(days: &[UsageSum], as_json: bool) -> String {
    if as_json {
        let rows = days.iter().map(|day| {
            let mut row = usage_sum(day);
            row["day"] = day.day.clone().into();
            row
        });
        return format!("{:#}\n", Value::from_iter(rows));
    }
    let header = [
        "day",
        "model",
        "requests",
        "failed",
        "tokens in",
        "cached",
        "tokens out",
        "TTFT",
        "tok/s",
        "accepted",
    ];
    table(&[vec![header.map(str::to_owned)], days.iter().map(usage_row).collect()].concat())
}

fn usage_row(day: &UsageSum) -> [String; 10] {
    [
        day.day.clone(),
        named(&day.model),
        day.requests.to_string(),
        day.failed.to_string(),
        day.prompt_tokens.to_string(),
        percent(day.cached_tokens, day.prompt_tokens),
        day.completion_tokens.to_string(),
        day.mean_time_to_first_token_s.map_or("-".into(), |seconds| format!("{:.0} ms", seconds * 1e3)),
        day.tokens_per_second.map_or("-".into(), |speed| format!("{speed:.1}")),
        percent(day.accepted, day.drafted),
    ]
}

fn requests(records: &[RequestRecord], as_json: bool) -> String {
    if as_json {
        return format!("{:#}\n", json!(records));
    }
    let header = [
        "when",
        "route",
        "status",
        "ended",
        "model",
        "tokens in",
        "cached",
        "tokens out",
        "TTFT",
        "tok/s",
        "ms",
        "id",
    ];
    table(&[vec![header.map(str::to_owned)], records.iter().map(request_row).collect()].concat())
}

fn request_row(record: &RequestRecord) -> [String; 12] {
    let figure =
        |value: Option<f64>, digits: usize| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    [
        ago(UNIX_EPOCH + Duration::from_millis(record.at.unsigned_abs())),
        record.route.clone(),
        if record.status == 0 { "-".into() } else { record.status.to_string() },
        named(&record.outcome),
        named(&record.model),
        record.prompt_tokens.to_string(),
        record.cached_tokens.to_string(),
        record.completion_tokens.to_string(),
        figure(record.time_to_first_token_ms, 0),
        figure(record.tokens_per_second, 1),
        figure(Some(record.duration_ms), 0),
        record.id.clone(),
    ]
}

fn named(name: &str) -> String {
    if name.is_empty() { "-".into() } else { name.into() }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.0}%", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_table_has_a_row_for_each_day_and_model() {
        let day = UsageSum {
            day: "2026-11-25".into(),
            model: "owl".into(),
            requests: 12,
            failed: 1,
            prompt_tokens: 1000,
            cached_tokens: 640,
            completion_tokens: 300,
            mean_time_to_first_token_s: Some(0.0521),
            tokens_per_second: Some(41.25),
            ..UsageSum::default()
        };
        let text = usage(&[day], false);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["2026-11-25", "owl", "12", "1", "1000", "64%", "300", "52", "ms", "41.2", "-"]);
    }
}
