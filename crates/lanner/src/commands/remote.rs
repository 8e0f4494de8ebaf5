//! `lanner ps` and `lanner stop MODEL`: the models of a running server, over its HTTP routes.

use std::{io::Write, time::Duration};

use serde_json::{Value, json};
use ureq::{Agent, http::StatusCode};

use super::CommandError;
use crate::{
    config::ServerAddress,
    hub::megabytes,
    terminal::{say, table},
};

const CONNECT: Duration = Duration::from_secs(5);
/// A model is unloaded once its requests have ended.
const ANSWER: Duration = Duration::from_secs(60);

/// Lists the models that the server has in memory or is loading.
///
/// # Errors
/// No server answers, it refuses, or stdout is closed.
pub fn ps(server: &ServerAddress, as_json: bool) -> Result<(), CommandError> {
    let models = models_within(server, ANSWER)?;
    let text = match as_json {
        true => format!("{:#}\n", Value::from(models)),
        false => table(&[vec![HEADER.map(str::to_owned)], models.iter().map(row).collect()].concat()),
    };
    Ok(write!(std::io::stdout(), "{text}")?)
}

/// The models that the server has in memory or is loading.
pub(super) fn models_within(server: &ServerAddress, time: Duration) -> Result<Vec<Value>, CommandError> {
    match call_within(server, "/v1/models", None, time)?["data"].take() {
        Value::Array(models) => Ok(models.into_iter().filter(|model| state(model) != "on_disk").collect()),
        _ => Err(unreadable(server)),
    }
}

/// Unloads a model of the server.
///
/// # Errors
/// No server answers, or it refuses.
pub(super) fn unload(server: &ServerAddress, model: &str) -> Result<(), CommandError> {
    call(server, "/v1/models/unload", Some(&json!({ "model": model })))?;
    say(format_args!("lanner: {model} is unloaded"));
    Ok(())
}

fn state(model: &Value) -> &str {
    model["state"].as_str().unwrap_or("loaded")
}

/// The columns of [`row`].
pub(super) const HEADER: [&str; 4] = ["model", "state", "context", "weights"];

pub(super) fn row(model: &Value) -> [String; 4] {
    let number = |value: &Value, show: fn(u64) -> String| value.as_u64().map_or("-".into(), show);
    [
        model["id"].as_str().unwrap_or("-").into(),
        state(model).into(),
        number(&model["context_length"], |tokens| tokens.to_string()),
        number(&model["memory"]["weight_bytes"], megabytes),
    ]
}

/// GET, or POST with a body.
pub(super) fn call(server: &ServerAddress, path: &str, body: Option<&Value>) -> Result<Value, CommandError> {
    call_within(server, path, body, ANSWER)
}

/// As [`call`], for answers that take longer or must come sooner.
pub(super) fn call_within(
    server: &ServerAddress,
    path: &str,
    body: Option<&Value>,
    time: Duration,
) -> Result<Value, CommandError> {
    let (status, text) = exchange(server, path, body, time)?;
    let value: Value = serde_json::from_str(&text).map_err(|_| unreadable(server))?;
    match status.is_success() {
        true => Ok(value),
        false => Err(refused(server, status, &text)),
    }
}

/// GET of an answer that is no JSON.
pub(super) fn text_within(
    server: &ServerAddress,
    path: &str,
    time: Duration,
) -> Result<String, CommandError> {
    let (status, text) = exchange(server, path, None, time)?;
    match status.is_success() {
        true => Ok(text),
        false => Err(refused(server, status, &text)),
    }
}

fn refused(server: &ServerAddress, status: StatusCode, text: &str) -> CommandError {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let message = value["error"]["message"].as_str().unwrap_or(text).to_owned();
    CommandError::Refused { url: server.url(), status: status.as_u16(), message }
}

fn exchange(
    server: &ServerAddress,
    path: &str,
    body: Option<&Value>,
    time: Duration,
) -> Result<(StatusCode, String), CommandError> {
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        // The server is on this machine or in its network.
        .proxy(None)
        .timeout_connect(Some(CONNECT))
        .timeout_global(Some(time))
        .build()
        .into();
    let url = format!("{}{path}", server.url());
    let bearer = server.api_key.as_ref().map(|key| format!("Bearer {key}"));
    let sent = match body {
        None => {
            let request = agent.get(&url);
            bearer.iter().fold(request, |request, key| request.header("authorization", key)).call()
        }
        Some(body) => {
            let request = agent.post(&url).header("content-type", "application/json");
            let request = bearer.iter().fold(request, |request, key| request.header("authorization", key));
            request.send(body.to_string())
        }
    };
    let mut reply =
        sent.map_err(|error| CommandError::NoServer { url: server.url(), error: error.to_string() })?;
    Ok((reply.status(), reply.body_mut().read_to_string().unwrap_or_default()))
}

pub(super) fn unreadable(server: &ServerAddress) -> CommandError {
    CommandError::NoServer { url: server.url(), error: "its answer is not that of Lanner".into() }
}
