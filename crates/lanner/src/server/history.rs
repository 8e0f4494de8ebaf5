//! Routes of the store: conversations of the web page and of `lanner chat`, and sums of requests. A
//! conversation belongs to the API key that made it. Texts of other routes are never stored.

use std::time::Duration;

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    http::{StatusCode, Uri},
    response::Response,
};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use store::{Cursor, Page, Period, Scope, Store, StoreError, Summary, Update, UsageSum};

use super::{
    app_state::AppState,
    clock::unix_seconds,
    handlers::{ImageBody, JsonBody, Threads, json_text},
    openai::{self, error::ApiError},
    preparation::{Lane, Preparation, Received},
    schema::{TextOrNull, words},
    tenant::Client,
};

/// Conversations of a page of the list.
const MAX_PAGE: usize = 100;
const DEFAULT_PAGE: usize = 50;
const MAX_DAYS: u32 = 731;
/// When a store that another program writes to is tried again.
const BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// A conversation to make or to change; what is left out stays as it is.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct ConversationUpdate {
    #[schemars(length(min = 1, max = 500))]
    title: Option<String>,
    /// In milliseconds since the Unix epoch.
    created: Option<i64>,
    updated: Option<i64>,
    /// The message at the end of the selected branch.
    leaf: Option<String>,
    /// Messages by their ids, added or replaced; others stay.
    messages: Option<std::collections::BTreeMap<String, HistoryMessage>>,
    /// Of the program; `system` is the system message.
    settings: Option<Map<String, Value>>,
}

/// A message. Further fields are kept as they are.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct HistoryMessage {
    #[schemars(length(min = 1, max = 64))]
    id: String,
    /// Null at the start of the conversation. It never changes.
    #[schemars(with = "TextOrNull")]
    parent: (),
    #[schemars(transform = words(["user", "assistant", "tool"]))]
    role: String,
    text: String,
    /// In milliseconds since the Unix epoch.
    created: i64,
    #[schemars(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[schemars(rename = "toolCalls", skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Value>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

/// The conversations of this key that have all words of `search`, latest first.
pub(super) async fn list(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Extension(preparation): Threads,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let (store, scope) = (opened(&state)?, scope(&client));
    let limit = number(&uri, "limit", 1..=MAX_PAGE as u32)?.map_or(DEFAULT_PAGE, |limit| limit as usize);
    let after = parameter(&uri, "after").map(|after| Cursor::parse(&after)).transpose().map_err(failed)?;
    let search = parameter(&uri, "search").filter(|search| !search.trim().is_empty());
    let read = move || match search {
        Some(search) => store.search(&scope, &search, after, limit),
        None => store.list(&scope, after, limit),
    };
    let Page { items, next } = run(&preparation, read).await?;
    Ok(Json(json!({
        "object": "list",
        "data": items.iter().map(summary).collect::<Vec<_>>(),
        "next": next.map(|next| next.to_string()),
    })))
}

pub(super) async fn read(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Extension(preparation): Threads,
    id: Id,
) -> Result<Response, ApiError> {
    let (store, scope, id) = (opened(&state)?, scope(&client), named(id)?);
    let size = {
        let (store, scope, id) = (store.clone(), scope.clone(), id.clone());
        run(&preparation, move || store.conversation_bytes(&scope, &id)).await?
    };
    let write = move || {
        let conversation = store.conversation(&scope, &id).map_err(failed)?;
        // Fails only for types that JSON cannot represent.
        Ok(serde_json::to_vec(&conversation).unwrap_or_default().into())
    };
    preparation.answer(size, write).await.map(json_text)
}

/// Makes a conversation, or changes it.
pub(super) async fn put(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    id: Id,
    ImageBody(body): ImageBody,
) -> Result<Json<Value>, ApiError> {
    let (store, id) = (opened(&state)?, named(id)?);
    let JsonBody { received: Received { bytes, charge, .. }, client } = body?;
    let lane = charge.lane();
    let update: Update = preparation.run(lane, move || openai::parse(&bytes)).await?;
    let owner = owner(&client).to_owned();
    let write = move || {
        // The update is as large as the body.
        let _charge = charge;
        store.put(&owner, &id, update)
    };
    Ok(Json(summary(&run(&preparation, write).await?)))
}

pub(super) async fn delete(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Extension(preparation): Threads,
    id: Id,
) -> Result<Json<Value>, ApiError> {
    let (store, scope, id) = (opened(&state)?, scope(&client), named(id)?);
    let answer = json!({ "id": id, "object": "conversation", "deleted": true });
    run(&preparation, move || store.remove(&scope, &id)).await?;
    Ok(Json(answer))
}

/// Requests by hour or day and model, of all keys.
pub(super) async fn stats(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let store = opened(&state)?;
    let (by, period) = match parameter(&uri, "by").as_deref() {
        None | Some("hour") => ("hour", Period::Hour),
        Some("day") => ("day", Period::Day),
        Some(other) => {
            return Err(ApiError::invalid("by", format!("by is `{other}`; it must be hour or day")));
        }
    };
    let days = number(&uri, "days", 1..=MAX_DAYS)?.unwrap_or(1);
    let since = unix_seconds() as i64 - i64::from(days) * 24 * 3600;
    let read = move || {
        store.flush()?;
        store.usage(period, since)
    };
    let sums = run(&preparation, read).await?;
    let data: Vec<Value> = sums.iter().map(usage_sum).collect();
    Ok(Json(json!({ "object": "stats.history", "by": by, "data": data })))
}

/// A sum in this route and in `lanner stats --json`.
pub(crate) fn usage_sum(sum: &UsageSum) -> Value {
    json!({
        "start": sum.start,
        "model": sum.model,
        "requests": sum.requests,
        "failed": sum.failed,
        "cancelled": sum.cancelled,
        "tokens": {
            "prompt": sum.prompt_tokens,
            "cached": sum.cached_tokens,
            "generated": sum.completion_tokens,
            "reasoning": sum.reasoning_tokens,
        },
        "speculation": { "drafted": sum.drafted, "accepted": sum.accepted },
        "mean_time_to_first_token_s": sum.mean_time_to_first_token_s,
        "tokens_per_second": sum.tokens_per_second,
    })
}

fn summary(summary: &Summary) -> Value {
    let mut value = json!(summary);
    value["object"] = "conversation".into();
    value
}

fn opened(state: &AppState) -> Result<Store, ApiError> {
    state.store().cloned().ok_or_else(|| {
        let message =
            "this server stores nothing: it was started with --no-store, or its store cannot be opened";
        ApiError::new(StatusCode::NOT_FOUND, message).code("store_disabled")
    })
}

/// Reading and writing block on the disk and on other programs.
async fn run<T: Send + 'static>(
    preparation: &Preparation,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ApiError> {
    preparation.run(Lane::Waiting, move || work().map_err(failed)).await
}

fn owner(client: &Client) -> &str {
    client.key.as_deref().unwrap_or_default()
}

fn scope(client: &Client) -> Scope {
    Scope::Owner(owner(client).to_owned())
}

fn failed(error: StoreError) -> ApiError {
    let message = error.to_string();
    match error {
        StoreError::NotFound(_) | StoreError::Ambiguous(_) => {
            ApiError::new(StatusCode::NOT_FOUND, message).param("id").code("conversation_not_found")
        }
        StoreError::Invalid { field, .. } => ApiError::invalid(field, message),
        StoreError::Busy => {
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("store_busy");
            ApiError { retry_after: Some(BUSY_RETRY_AFTER), ..error }
        }
        StoreError::Full => ApiError::new(StatusCode::INSUFFICIENT_STORAGE, message).code("store_full"),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("store_failed"),
    }
}

/// A conversation's id in the path.
type Id = Result<Path<String>, PathRejection>;

fn named(id: Id) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|rejection| ApiError::invalid("id", rejection.body_text()))
}

fn number(uri: &Uri, name: &str, range: std::ops::RangeInclusive<u32>) -> Result<Option<u32>, ApiError> {
    let Some(text) = parameter(uri, name) else { return Ok(None) };
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => {
            let message = format!("{name} must be a number between {} and {}", range.start(), range.end());
            Err(ApiError::invalid(name, message))
        }
    }
}

/// A parameter of the query, decoded.
fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let mut pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(key, value)| (key == name).then(|| decoded(value)))
}

/// Text of a query: `+` is a space, `%` begins a byte in two digits.
fn decoded(text: &str) -> String {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        let (byte, length) = match rest {
            [] => return String::from_utf8_lossy(&bytes).into_owned(),
            [b'%', high, low, ..] => match (digit(high), digit(low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => (b'%', 1),
            },
            [b'+', ..] => (b' ', 1),
            [byte, ..] => (*byte, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_text_is_decoded() {
        for (text, expected) in [
            ("owls+at%20night", "owls at night"),
            ("%E5%A4%A9%e6%b0%94", "天气"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("%+1", "% 1"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(decoded(text), expected, "{text}");
        }
        let uri: Uri = "/v1/history?x=1&search=a%26b&limit=7".parse().unwrap();
        assert_eq!(parameter(&uri, "search").as_deref(), Some("a&b"));
        assert_eq!(number(&uri, "limit", 1..=9).unwrap(), Some(7));
        assert!(number(&uri, "limit", 1..=6).is_err() && number(&uri, "search", 1..=6).is_err());
    }
}
