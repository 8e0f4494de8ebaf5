//! The web page at `/`: chat, the engine and models. Its files are built from `web/` and embedded
//! compressed; a build of the server does not build them.

use std::sync::LazyLock;

use axum::{
    extract::{Path, rejection::PathRejection},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
            ETAG, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};
use ring::digest::{SHA256, digest};

use super::openai::error::ApiError;

/// What programs get that look for a server at its address; they read any text.
const GREETING: &str = "Lanner is running";
/// Only files and routes of this server, and no script or style inside the document. With trusted
/// types the browser refuses to parse a string as HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// A file of the page.
struct File {
    name: &'static str,
    media: &'static str,
    /// Compressed by gzip.
    content: &'static [u8],
    /// Changes with the content.
    etag: LazyLock<String>,
}

/// A file of `files/`, compressed.
macro_rules! file {
    ($name:literal, $media:literal) => {
        File {
            name: $name,
            media: $media,
            content: include_bytes!(concat!("files/", $name, ".gz")),
            etag: LazyLock::new(|| etag(include_bytes!(concat!("files/", $name, ".gz")))),
        }
    };
}

static DOCUMENT: File = file!("index.html", "text/html; charset=utf-8");
/// The document refers to these.
static PARTS: [File; 4] = [
    file!("app.js", "text/javascript; charset=utf-8"),
    file!("math.js", "text/javascript; charset=utf-8"),
    file!("style.css", "text/css; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
];

/// The document for browsers, which ask for HTML, and a line of text for programs.
pub(super) async fn index(headers: HeaderMap) -> Result<Response, ApiError> {
    let wants_html = contains(&headers, &ACCEPT, "text/html");
    let mut response = if wants_html { DOCUMENT.respond(&headers)? } else { GREETING.into_response() };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    Ok(response)
}

/// A file that the document refers to.
pub(super) async fn file(
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let name = name.map(|Path(name)| name).unwrap_or_default();
    let Some(file) = PARTS.iter().find(|file| file.name == name) else {
        let message = "the page has no such file; it may be of another version: reload it";
        return Err(ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url"));
    };
    file.respond(&headers)
}

impl File {
    fn respond(&self, headers: &HeaderMap) -> Result<Response, ApiError> {
        if headers.contains_key(ACCEPT_ENCODING) && !accepts_gzip(headers) {
            let message = "the page is stored compressed; send `Accept-Encoding: gzip`";
            return Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, message));
        }
        let fixed = [
            (CACHE_CONTROL, "no-cache"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (VARY, "accept-encoding"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (ETAG, &*self.etag),
        ];
        if contains(headers, &IF_NONE_MATCH, &self.etag) {
            return Ok((StatusCode::NOT_MODIFIED, fixed).into_response());
        }
        Ok((fixed, [(CONTENT_TYPE, self.media), (CONTENT_ENCODING, "gzip")], self.content).into_response())
    }
}

/// Whether a header names gzip or any coding, and does not exclude it.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.trim().parse::<f32>().ok());
        let is_gzip = ["gzip", "x-gzip", "*"].iter().any(|known| name.trim().eq_ignore_ascii_case(known));
        is_gzip && weight != Some(0.0)
    })
}

fn contains(headers: &HeaderMap, name: &HeaderName, part: &str) -> bool {
    headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(part)))
}

fn etag(content: &[u8]) -> String {
    let digest = digest(&SHA256, content);
    let hex: String = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use ring::digest::Context;

    use super::*;

    fn web() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../web")
    }

    /// Paths of the sources relative to `web/`, as `web/build.mjs` lists them.
    fn sources(folder: &str) -> Vec<String> {
        let entries = fs::read_dir(web().join(folder)).unwrap().map(|entry| entry.unwrap());
        let of_entry = |entry: fs::DirEntry| {
            let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() { sources(&path) } else { vec![path] }
        };
        entries.flat_map(of_entry).collect()
    }

    #[test]
    fn files_are_built_from_the_current_sources() {
        let mut paths = sources("src");
        paths.extend(["build.mjs", "package-lock.json"].map(str::to_owned));
        paths.sort();
        let mut hash = Context::new(&SHA256);
        for path in &paths {
            hash.update(path.as_bytes());
            hash.update(b"\0");
            hash.update(&fs::read(web().join(path)).unwrap());
            hash.update(b"\0");
        }
        let hex: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let recorded = include_str!("files/digest.txt").trim();
        assert_eq!(recorded, hex, "the page's files are stale: run `npm ci && npm run build` in web/");
    }

    #[test]
    fn files_are_small() {
        let all = PARTS.iter().chain([&DOCUMENT]);
        let total: usize = all.map(|file| file.content.len()).sum();
        assert!(total < 300_000, "{total} bytes compressed");
    }

    #[test]
    fn gzip_is_found_among_codings() {
        for (value, accepted) in [
            ("gzip", true),
            ("br, gzip;q=0.5, *;q=0", true),
            ("*", true),
            ("identity", false),
            ("gzip;q=0", false),
            ("br", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(accepts_gzip(&headers), accepted, "{value}");
        }
    }
}
