//! CORS headers for the web pages that `--cors-origin` allows.

use axum::http::{
    HeaderName, HeaderValue, Method,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::CorsOrigin;

/// Headers of answers that pages may read, besides those that every page may.
const EXPOSED: [HeaderName; 6] = [
    CONTENT_TYPE,
    RETRY_AFTER,
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("idempotent-replayed"),
    HeaderName::from_static("lanner-lossy"),
];

/// Answers preflight requests and marks other answers; `None` without origins.
pub(crate) fn layer(origins: &[CorsOrigin]) -> Option<CorsLayer> {
    let origin = match origins {
        [] => return None,
        all if all.contains(&CorsOrigin::Any) => AllowOrigin::any(),
        all => AllowOrigin::list(all.iter().filter_map(CorsOrigin::header)),
    };
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // A wildcard would not include Authorization.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED)
        // Chrome asks before a public page calls a server of the local network.
        .allow_private_network(true);
    Some(layer)
}

impl CorsOrigin {
    /// Whether a page of this origin may read answers.
    pub(crate) fn allows(&self, origin: &str) -> bool {
        match self {
            CorsOrigin::Any => true,
            CorsOrigin::One(allowed) => allowed == origin,
        }
    }

    fn header(&self) -> Option<HeaderValue> {
        match self {
            CorsOrigin::Any => None,
            CorsOrigin::One(origin) => HeaderValue::from_str(origin).ok(),
        }
    }
}
