//! Paths as clients write them: base URLs with and without `/v1`, and superfluous slashes.

/// First segments of the routes below `/v1`.
const VERSIONED: [&str; 12] = [
    "cache",
    "chat",
    "completions",
    "embeddings",
    "history",
    "messages",
    "models",
    "requests",
    "rerank",
    "responses",
    "stats",
    "v1",
];
/// First segments of the other routes.
const UNVERSIONED: [&str; 11] = [
    "api",
    "apply-template",
    "detokenize",
    "docs",
    "health",
    "metrics",
    "openapi.json",
    "page",
    "tokenize",
    "tokenizer_info",
    "version",
];

/// The path that the router knows: `/v1` once before versioned routes and never before others, and
/// no empty segments.
pub(super) fn canonical(path: &str) -> String {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty()).peekable();
    let mut has_version = false;
    while segments.next_if_eq(&"v1").is_some() {
        has_version = true;
    }
    let first = segments.peek().copied().unwrap_or_default();
    let is_versioned = VERSIONED.contains(&first) || has_version && !UNVERSIONED.contains(&first);
    let version = is_versioned.then_some("v1");
    let joined: Vec<&str> = version.into_iter().chain(segments).collect();
    format!("/{}", joined.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_path_has_one_version_and_no_empty_segments() {
        for (path, expected) in [
            ("/", "/"),
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/chat/completions", "/v1/chat/completions"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("//v1//chat/completions", "/v1/chat/completions"),
            ("/v1/v1/messages", "/v1/messages"),
            ("/messages/count_tokens", "/v1/messages/count_tokens"),
            ("/models/org/name", "/v1/models/org/name"),
            ("/v1/models/v1", "/v1/models/v1"),
            ("/v1/api/chat", "/api/chat"),
            ("/v1/health", "/health"),
            ("/tokenize/", "/tokenize"),
            ("/v1", "/v1"),
            ("/v1/unknown", "/v1/unknown"),
            ("/unknown/v1/models", "/unknown/v1/models"),
            ("/v1/models/%2F%00", "/v1/models/%2F%00"),
        ] {
            assert_eq!(canonical(path), expected, "{path}");
            assert_eq!(canonical(expected), expected, "{expected} again");
        }
    }
}
