//! The OpenAPI document at `/openapi.json`, from the types that handlers read and write, and the
//! page at `/docs` that shows it.

mod answers;
mod document;
mod operation;
mod page;
mod routes;
mod statuses;
mod store_answers;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use axum::http::{HeaderName, header::CONTENT_TYPE};

pub(crate) use self::{document::document, page::docs};

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

pub(crate) async fn openapi_json() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(CONTENT_TYPE, "application/json")], &DOCUMENT)
}
