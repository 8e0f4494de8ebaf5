//! Routes of stored responses: reading, deleting and cancelling them.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    http::{StatusCode, Uri},
    response::Response,
};
use serde_json::{Value, json};

use super::{
    Common,
    app_state::AppState,
    handlers::{Body, Log, Threads, respond},
    openai::{
        error::ApiError,
        responses::{ResponsesFormat, store::NotStored},
    },
    tenant::Client,
};

/// Most items of a page.
const MAX_PAGE: usize = 100;
const DEFAULT_PAGE: usize = 20;

pub(super) async fn create(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    respond::<ResponsesFormat>(state, &preparation, log, body).await
}

pub(super) async fn read(
    State(server): State<Arc<Common>>,
    Extension(client): Sender,
    id: Id,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let id = named(id)?;
    let streams = parameter(&uri, "stream").is_some_and(|stream| stream != "false");
    if streams || parameter(&uri, "starting_after").is_some() {
        return Err(ApiError::unsupported("stream"));
    }
    server.responses.response(&id, &client).map(Json).map_err(not_found)
}

pub(super) async fn delete(
    State(server): State<Arc<Common>>,
    Extension(client): Sender,
    id: Id,
) -> Result<Json<Value>, ApiError> {
    let id = named(id)?;
    server.responses.remove(&id, &client).map_err(not_found)?;
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// Cancels a response that is being streamed to another connection, or answered.
pub(super) async fn cancel(
    State(server): State<Arc<Common>>,
    Extension(client): Sender,
    id: Id,
) -> Result<Json<Value>, ApiError> {
    let id = named(id)?;
    let mut response = server.responses.response(&id, &client).map_err(not_found)?;
    if server.active.cancel(&id, &client) == 0 {
        let status = response["status"].as_str().unwrap_or_default();
        let message = format!("the response is {status}; only one in progress can be cancelled");
        return Err(ApiError::invalid("response_id", message));
    }
    response["status"] = "cancelled".into();
    Ok(Json(response))
}

/// The input items of a response, a page at a time, latest first.
pub(super) async fn input_items(
    State(server): State<Arc<Common>>,
    Extension(client): Sender,
    id: Id,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let id = named(id)?;
    let limit = match parameter(&uri, "limit").map(str::parse) {
        None => DEFAULT_PAGE,
        Some(Ok(limit @ 1..=MAX_PAGE)) => limit,
        Some(_) => {
            let message = format!("limit must be a number between 1 and {MAX_PAGE}");
            return Err(ApiError::invalid("limit", message));
        }
    };
    let mut items = server.responses.input(&id, &client).map_err(not_found)?;
    match parameter(&uri, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => {
            let message = format!("order is `{other}`; it must be asc or desc");
            return Err(ApiError::invalid("order", message));
        }
    }
    if let Some(after) = parameter(&uri, "after") {
        let Some(at) = items.iter().position(|item| item["id"] == *after) else {
            return Err(ApiError::invalid("after", format!("the response has no item `{after}`")));
        };
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
    Ok(Json(json!({
        "object": "list",
        "first_id": id(items.first()),
        "last_id": id(items.last()),
        "has_more": has_more,
        "data": items,
    })))
}

/// Responses are read and changed with the key that made them.
type Sender = Extension<Client>;

/// A response's id in the path.
type Id = Result<Path<String>, PathRejection>;

fn named(id: Id) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|rejection| ApiError::invalid("response_id", rejection.body_text()))
}

/// A parameter of the query. Its values are numbers, words and ids, which need no decoding.
fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let mut pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(key, value)| (key == name).then_some(value))
}

fn not_found(NotStored(id): NotStored) -> ApiError {
    let message = format!("the response `{id}` is not stored here, or not any more");
    ApiError::new(StatusCode::NOT_FOUND, message).param("response_id").code("response_not_found")
}
