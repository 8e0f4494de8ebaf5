//! `POST /api/pull`: a download with progress in Ollama's words.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    hub::{PullEvent, RepoName},
    server::{
        admin::ndjson,
        app_state::AppState,
        handlers::JsonBody,
        models::untagged,
        openai::{self, error::ApiError, fields},
        protocol::Protocol,
        pulling::{PullLine, PullStream},
    },
    source,
};

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "OllamaPullRequest")]
pub(crate) struct PullBody {
    /// `ORG/NAME[@REVISION][:PART]`, or a short name.
    model: Option<String>,
    /// The former name of `model`.
    name: Option<String>,
    /// Only false.
    #[schemars(extend("enum" = [false, null]))]
    insecure: Option<bool>,
    /// Answer in lines of JSON.
    #[schemars(extend("default" = true))]
    stream: Option<bool>,
}

pub(super) async fn pull(State(state): State<AppState>, body: JsonBody) -> Result<Response, ApiError> {
    let body: PullBody = openai::parse(&body.received.bytes)?;
    fields::refuse(&[("insecure", body.insecure == Some(true))])?;
    let pull = PullStream::start(&state, repo(&body.model.or(body.name).unwrap_or_default())?)?;
    if body.stream.unwrap_or(true) {
        return Ok(ndjson(pull, to_json));
    }
    pull.finish().await?;
    Ok(Json(json!({ "status": "success" })).into_response())
}

/// A short name, or a repository of the hub with or without its host.
fn repo(name: &str) -> Result<RepoName, ApiError> {
    let own = ["hf.co/", "huggingface.co/"].iter().find_map(|host| name.strip_prefix(host)).unwrap_or(name);
    source::repo(untagged(own)).ok_or_else(|| {
        let message = format!("{name} is not ORG/NAME[@REVISION][:PART], nor a short name");
        ApiError::invalid("model", message)
    })
}

fn to_json(line: PullLine) -> Value {
    match line {
        PullLine::Progress(PullEvent::Start { .. }) => json!({ "status": "pulling manifest" }),
        PullLine::Progress(PullEvent::File { path, completed, total }) => {
            json!({ "status": format!("pulling {path}"), "digest": path, "completed": completed, "total": total })
        }
        PullLine::Progress(PullEvent::Waiting { seconds, reason }) => {
            json!({ "status": format!("waiting {seconds:.0} s: {reason}") })
        }
        PullLine::Done(..) => json!({ "status": "success" }),
        PullLine::Failed(error) => Protocol::Ollama.error(&error, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repo_takes_the_names_that_clients_send() {
        for name in ["hf.co/org/name", "org/name", "org/name:latest", "huggingface.co/org/name:latest"] {
            assert_eq!(repo(name).unwrap().to_string(), "org/name", "{name}");
        }
        assert!(repo("llama9").is_err());
        assert!(repo("").is_err());
    }
}
