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
    handlers::{ImageBody, Log, Threads, json_text, respond},
    openai::{
        error::ApiError,
        responses::{ResponsesFormat, store::NotStored, stored_item::StoredItem},
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
    ImageBody(body): ImageBody,
) -> Result<Response, ApiError> {
    respond::<ResponsesFormat>(state, &preparation, log, body).await
}

pub(super) async fn read(
    State(server): State<Arc<Common>>,
    Extension(client): Sender,
    Extension(preparation): Threads,
    id: Id,
    uri: Uri,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    let streams = parameter(&uri, "stream").is_some_and(|stream| stream != "false");
    if streams || parameter(&uri, "starting_after").is_some() {
        return Err(ApiError::unsupported("stream"));
    }
    let response = server.responses.response(&id, &client).map_err(not_found)?;
    preparation.answer(response.len(), move || Ok(response)).await.map(json_text)
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
    Extension(preparation): Threads,
    id: Id,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    let response = server.responses.response(&id, &client).map_err(not_found)?;
    let bytes = response.len();
    let cancel = move || {
        // It was written by `Value::to_string`.
        let mut response: Value = serde_json::from_slice(&response).unwrap_or_default();
        if server.active.cancel(&id, &client) == 0 {
            let status = response["status"].as_str().unwrap_or_default();
            let message = format!("the response is {status}; only one in progress can be cancelled");
            return Err(ApiError::invalid("response_id", message));
        }
        response["status"] = "cancelled".into();
        Ok(response.to_string().into())
    };
    preparation.answer(bytes, cancel).await.map(json_text)
}

/// The input items of a response, a page at a time, latest first.
pub(super) async fn input_items(
    State(server): State<Arc<Common>>,
    Extension(client): Sender,
    Extension(preparation): Threads,
    id: Id,
    uri: Uri,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    let limit = match parameter(&uri, "limit").map(str::parse) {
        None => DEFAULT_PAGE,
        Some(Ok(limit @ 1..=MAX_PAGE)) => limit,
        Some(_) => {
            let message = format!("limit must be a number between 1 and {MAX_PAGE}");
            return Err(ApiError::invalid("limit", message));
        }
    };
    let items = server.responses.input(&id, &client).map_err(not_found)?;
    let mut order: Vec<usize> = (0..items.len()).collect();
    match parameter(&uri, "order") {
        None | Some("desc") => order.reverse(),
        Some("asc") => {}
        Some(other) => {
            let message = format!("order is `{other}`; it must be asc or desc");
            return Err(ApiError::invalid("order", message));
        }
    }
    if let Some(after) = parameter(&uri, "after") {
        let Some(at) = order.iter().position(|at| *items[*at].id == *after) else {
            return Err(ApiError::invalid("after", format!("the response has no item `{after}`")));
        };
        order.drain(..=at);
    }
    let has_more = order.len() > limit;
    order.truncate(limit);
    let bytes = order.iter().map(|at| items[*at].bytes()).sum();
    let write = move || Ok(page(&order.iter().map(|at| &items[*at]).collect::<Vec<_>>(), has_more).into());
    preparation.answer(bytes, write).await.map(json_text)
}

/// A page of items, which are JSON already.
fn page(shown: &[&StoredItem], has_more: bool) -> String {
    let ids: Vec<&str> = shown.iter().map(|item| &*item.id).collect();
    let mut text = json!({
        "object": "list",
        "first_id": ids.first(),
        "last_id": ids.last(),
        "has_more": has_more,
    })
    .to_string();
    // The list is the last field.
    text.pop();
    let data: Vec<&str> = shown.iter().map(|item| &*item.json).collect();
    text.push_str(&format!(",\"data\":[{}]}}", data.join(",")));
    text
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
