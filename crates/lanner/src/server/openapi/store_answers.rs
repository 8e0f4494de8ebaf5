//! Answers of the store's routes, described. Tests compare them with real ones.

#![allow(dead_code, reason = "only the schemas of these types are used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::server::{history::HistoryMessage, schema::words};

/// Conversations, latest first.
#[derive(JsonSchema)]
pub(crate) struct ConversationListAnswer {
    object: String,
    data: Vec<ConversationSummary>,
    /// `after` of the next page; null: this is the last one.
    next: Option<String>,
}

/// A conversation without its messages.
#[derive(JsonSchema)]
pub(crate) struct ConversationSummary {
    object: String,
    id: String,
    title: String,
    /// In milliseconds since the Unix epoch.
    created: i64,
    updated: i64,
    /// Number of messages in all branches.
    messages: u64,
    /// Of the last answer.
    model: Option<String>,
    /// The text around a match of a search.
    #[schemars(skip_serializing_if = "Option::is_none")]
    snippet: Option<String>,
}

/// A conversation: a tree of messages.
#[derive(JsonSchema)]
pub(crate) struct ConversationAnswer {
    id: String,
    title: String,
    /// In milliseconds since the Unix epoch.
    created: i64,
    updated: i64,
    /// The message at the end of the selected branch.
    leaf: Option<String>,
    /// By their ids.
    messages: BTreeMap<String, HistoryMessage>,
    settings: Map<String, Value>,
}

/// A conversation that was removed.
#[derive(JsonSchema)]
pub(crate) struct ConversationDeleteAnswer {
    id: String,
    object: String,
    deleted: bool,
}

/// Requests by period and model.
#[derive(JsonSchema)]
pub(crate) struct StatsHistoryAnswer {
    object: String,
    #[schemars(transform = words(["hour", "day"]))]
    by: String,
    data: Vec<UsagePeriod>,
}

/// Requests of one hour or day and model.
#[derive(JsonSchema)]
struct UsagePeriod {
    /// In seconds since the Unix epoch; days are those of the server's time zone.
    start: i64,
    /// Empty: requests that need none.
    model: String,
    requests: u64,
    failed: u64,
    cancelled: u64,
    tokens: UsageTokens,
    speculation: UsageDrafts,
    mean_time_to_first_token_s: Option<f64>,
    /// Of one answer, on average.
    tokens_per_second: Option<f64>,
}

#[derive(JsonSchema)]
struct UsageTokens {
    prompt: u64,
    cached: u64,
    generated: u64,
    reasoning: u64,
}

#[derive(JsonSchema)]
struct UsageDrafts {
    drafted: u64,
    accepted: u64,
}
