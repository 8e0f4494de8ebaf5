//! Statuses other than 200, and when they are answered: the groups that operations have in common.

use serde_json::{Value, json};

use crate::server::protocol::{OVERLOADED, Protocol};

/// A status and when it is answered.
#[derive(Clone, Copy)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) when: &'static str,
}

const fn status(code: u16, when: &'static str) -> Status {
    Status { code, when }
}

/// Security of every operation that asks for no key.
pub(crate) const PUBLIC: &[Status] = &[
    status(400, "not valid HTTP"),
    status(403, "the Host or Origin header names another site"),
    status(408, "the request came too slowly"),
    status(431, "the headers are too large"),
    status(500, "a bug; the log has the details"),
    status(503, "too many connections are open, or the server is shutting down"),
];
/// Of every other operation.
pub(crate) const ANY: &[Status] = &[
    status(400, "a parameter or a field has an invalid value, or is not supported"),
    status(401, "the API key is missing or wrong"),
    status(403, "the Host or Origin header names another site"),
    status(408, "the request came too slowly"),
    status(431, "the headers are too large"),
    status(500, "a bug; the log has the details"),
    status(503, "too many connections are open, or the server is shutting down"),
];
/// Of operations that are never done.
pub(crate) const REFUSED: &[Status] = &[
    status(400, "always: the message names the command to use instead"),
    status(401, "the API key is missing or wrong"),
    status(403, "the Host or Origin header names another site"),
    status(408, "the request came too slowly"),
    status(431, "the headers are too large"),
    status(503, "too many connections are open, or the server is shutting down"),
];
/// Of operations with a body.
pub(crate) const BODY: &[Status] = &[
    status(413, "the body is larger than `--body-limit`"),
    status(415, "the body is not sent as `application/json`"),
    status(503, "too many large bodies are being read"),
];
/// Of operations that the path or the body names an object of.
pub(crate) const NOT_FOUND: &[Status] = &[status(404, "there is no such object")];
/// Of operations that name the model.
pub(crate) const MODEL: &[Status] = &[status(404, "the model is not served")];
/// Of operations that wait for the engine.
pub(crate) const ENGINE: &[Status] = &[
    status(429, "the queue is full"),
    status(503, "there is no memory for the request, or the engine has stopped"),
    status(504, "the request's `timeout` expired"),
];
/// Of operations that `--no-admin` turns off.
pub(crate) const ADMIN: &[Status] = &[status(403, "the server was started with `--no-admin`")];
/// Of downloads.
pub(crate) const PULL: &[Status] = &[
    status(403, "the hub does not give the model to this account"),
    status(404, "the hub has no such model"),
    status(409, "the model is being downloaded already"),
    status(429, "too many models are being downloaded, or the hub limits requests"),
    status(502, "the hub cannot be reached, fails, or sends wrong bytes"),
    status(503, "`HF_HUB_OFFLINE` is set and the model is not complete in the cache"),
    status(507, "the disk is full"),
];
/// Of loading a model.
pub(crate) const LOAD: &[Status] = &[
    status(404, "the model is not (completely) downloaded"),
    status(409, "another model is being loaded"),
    status(503, "there is no memory for the model"),
];
/// Of the store.
pub(crate) const STORE: &[Status] = &[
    status(404, "the server stores nothing"),
    status(500, "the store cannot be read or written"),
    status(503, "another program is writing to the store"),
    status(507, "the disk is full"),
];
/// Of the web page.
pub(crate) const PAGE: &[Status] = &[status(406, "the `Accept-Encoding` header excludes gzip")];
/// Of `/health`.
pub(crate) const UNHEALTHY: &[Status] =
    &[status(503, "the engine is stuck or has stopped; the body says why")];

impl Status {
    /// The code as a key, and the response object, in the API of the path.
    pub(crate) fn response(self, protocol: Protocol) -> (String, Value) {
        let code = match (protocol, self.code) {
            (Protocol::Anthropic, 503) => OVERLOADED,
            (_, code) => code,
        };
        let schema = match protocol {
            Protocol::OpenAi => "Error",
            Protocol::Anthropic => "AnthropicError",
            Protocol::Ollama => "OllamaError",
        };
        let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
        let response = json!({
            "description": self.when,
            "headers": headers(matches!(self.code, 429 | 503)),
            "content": { "application/json": { "schema": schema } },
        });
        (code.to_string(), response)
    }
}

/// Headers of a response.
pub(crate) fn headers(may_retry: bool) -> Value {
    let mut headers = json!({ "x-request-id": { "$ref": "#/components/headers/x-request-id" } });
    if may_retry {
        headers["retry-after"] = json!({ "$ref": "#/components/headers/retry-after" });
    }
    headers
}
