//! `lanner ps` and `lanner stop`: the models of a running server, over its HTTP routes.

use std::{io::Write, time::Duration};

use serde_json::{Value, json};
use ureq::Agent;

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
    let mut models = call(server, "/v1/models", None)?["data"].take();
    let models: &mut Vec<Value> = match &mut models {
        Value::Array(models) => models,
        _ => return Err(unreadable(server)),
    };
    models.retain(|model| state(model) != "on_disk");
    let text = match as_json {
        true => format!("{:#}\n", Value::from(std::mem::take(models))),
        false => {
            let header = ["model", "state", "context", "weights"].map(str::to_owned);
            table(&[vec![header], models.iter().map(row).collect()].concat())
        }
    };
    Ok(write!(std::io::stdout(), "{text}")?)
}

/// Unloads a model of the server.
///
/// # Errors
/// No server answers, or it refuses.
pub fn stop(server: &ServerAddress, model: &str) -> Result<(), CommandError> {
    call(server, "/v1/models/unload", Some(&json!({ "model": model })))?;
    say(format_args!("lanner: {model} is unloaded"));
    Ok(())
}

fn state(model: &Value) -> &str {
    model["state"].as_str().unwrap_or("loaded")
}

fn row(model: &Value) -> [String; 4] {
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
    let status = reply.status();
    let text = reply.body_mut().read_to_string().unwrap_or_default();
    let value: Value = serde_json::from_str(&text).map_err(|_| unreadable(server))?;
    match status.is_success() {
        true => Ok(value),
        false => {
            let message = value["error"]["message"].as_str().unwrap_or(&text).to_owned();
            Err(CommandError::Refused { url: server.url(), status: status.as_u16(), message })
        }
    }
}

pub(super) fn unreadable(server: &ServerAddress) -> CommandError {
    CommandError::NoServer { url: server.url(), error: "its answer is not that of Lanner".into() }
}
