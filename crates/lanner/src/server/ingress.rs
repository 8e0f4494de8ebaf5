//! The outermost layer: canonical paths, request ids, the shape of errors, and the request log.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Uri, uri::PathAndQuery},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};

use store::Store;

use super::{openai::error::ApiError, paths, protocol::Protocol, request_log::RequestLog};
use crate::sampling;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Anthropic's name of the same header.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Longest id of a client that is kept.
const LONGEST_ID: usize = 128;

/// Puts the layer around all routes; figures of requests go to the store.
pub(super) fn around(routes: Router, store: Option<Store>) -> Router {
    // Routing comes after this layer, which changes paths.
    Router::new().fallback_service(routes).layer(middleware::from_fn_with_state(store, enter))
}

async fn enter(State(store): State<Option<Store>>, mut request: Request, next: Next) -> Response {
    let path = paths::canonical(request.uri().path());
    if let Some(uri) = with_path(request.uri(), &path) {
        *request.uri_mut() = uri;
    }
    let protocol = Protocol::of(&path);
    let id = client_id(request.headers()).unwrap_or_else(new_id);
    let log = Arc::new(RequestLog::new(id, request.method().clone(), path, store));
    request.extensions_mut().insert(log.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = shaped(protocol, &error, log.id(), response);
    }
    if let Ok(value) = HeaderValue::from_str(log.id()) {
        response.headers_mut().insert(REQUEST_ID, value.clone());
        if protocol == Protocol::Anthropic {
            response.headers_mut().insert(ANTHROPIC_REQUEST_ID, value);
        }
    }
    log.set_status(response.status());
    response
}

fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    if uri.path() == path {
        return None;
    }
    let text = uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

/// The error in the format of the protocol; the headers stay.
fn shaped(protocol: Protocol, error: &ApiError, id: &str, response: Response) -> Response {
    if protocol == Protocol::OpenAi {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    parts.status = protocol.status(error);
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    let body = Json(protocol.error(error, id)).into_response().into_body();
    Response::from_parts(parts, body)
}

/// The client's own id, if it can be sent back and logged as it is.
fn client_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_plain = id.bytes().all(|byte| byte.is_ascii_graphic());
    (is_plain && (1..=LONGEST_ID).contains(&id.len())).then(|| id.to_owned())
}

/// An id that no other request has.
pub(super) fn new_id() -> String {
    format!("req_{:016x}", sampling::random())
}
