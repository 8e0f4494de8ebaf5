//! The page at `/docs`: one file without references to other hosts, and a policy that allows
//! nothing but its own script and style.

use std::sync::LazyLock;

use axum::http::{
    HeaderName, HeaderValue,
    header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};

const STYLE: &str = include_str!("docs.css");
const SCRIPT: &str = include_str!("docs.js");

static PAGE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>Lanner API</title>\n<link rel='icon' \
         href='data:,'>\n<style>{STYLE}</style>\n<nav \
         id=\"nav\"></nav>\n<main id=\"main\">Loading openapi.json</main>\n<script>{SCRIPT}</script>\n</html>\n"
    )
});

/// The page reads `/openapi.json` and sends the requests that its reader tries. Its icon is empty,
/// so that browsers ask for none.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; connect-src 'self'; img-src data:; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

pub(crate) async fn docs() -> ([(HeaderName, HeaderValue); 4], &'static str) {
    // The policy is printable ASCII.
    let policy = HeaderValue::from_str(&POLICY).unwrap_or(HeaderValue::from_static("default-src 'none'"));
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, &PAGE)
}
