//! Requests to an OpenAI base URL, one at a time.

use std::{
    io::BufReader,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use ureq::{
    Agent,
    http::{HeaderMap, Response},
    tls::{RootCerts, TlsConfig},
};

use crate::{
    EvalError, ServerFacts, Timing,
    stream::{Reply, RequestError, error_message, read_reply},
};

const CONNECT: Duration = Duration::from_secs(10);
/// For the routes that only describe the server.
const DESCRIBE: Duration = Duration::from_secs(20);
/// Bytes of a description that are read.
const DESCRIPTION_LIMIT: u64 = 1 << 20;

/// A server, with the model to ask for and the key to show.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// OpenAI base URL; `/v1` is added to an address without a path.
    pub url: String,
    /// `None`: the first that the server lists.
    pub model: Option<String>,
    /// Sent as a bearer token.
    pub key: Option<String>,
}

/// One chat completion: greedy, streamed, with usage.
#[derive(Debug, Default)]
pub(crate) struct ChatRequest {
    pub messages: Vec<Value>,
    pub max_tokens: u32,
    /// An array of tools.
    pub tools: Option<Value>,
    /// `None`: the server's default.
    pub thinking: Option<bool>,
}

pub(crate) struct Client {
    agent: Agent,
    base: String,
    key: Option<String>,
    timeout: Duration,
    /// Named in all requests.
    pub model: String,
}

impl Client {
    /// Connects, and asks for the model's name if the endpoint has none.
    ///
    /// # Errors
    /// The address is not valid, no server answers, or it lists no model.
    pub(crate) fn connect(
        endpoint: &Endpoint,
        timeout: Duration,
    ) -> Result<(Client, ServerFacts), EvalError> {
        let base = base_url(&endpoint.url)?;
        let mut client = Client {
            agent: agent(&base),
            base,
            key: endpoint.key.clone(),
            timeout,
            model: endpoint.model.clone().unwrap_or_default(),
        };
        let url = format!("{}/models", client.base);
        let reply = client.describe(&url);
        let (headers, list) = reply.map_err(|error| EvalError::NoServer { url: url.clone(), error })?;
        if endpoint.model.is_none() {
            let id = list["data"][0]["id"].as_str();
            let problem = || list.to_string().chars().take(200).collect();
            client.model = id.ok_or_else(|| EvalError::NoModel { url, problem: problem() })?.to_owned();
        }
        let facts = ServerFacts {
            url: client.base.clone(),
            model: client.model.clone(),
            server_header: header(&headers, "server"),
            version: client.version(),
            system_fingerprint: None,
        };
        Ok((client, facts))
    }

    /// Sends one request and reads its answer to the end.
    ///
    /// # Errors
    /// The server refuses, or its answer is not complete.
    pub(crate) fn chat(&self, request: &ChatRequest) -> Result<(Reply, Timing), RequestError> {
        let body = self.body(request).to_string();
        let url = format!("{}/chat/completions", self.base);
        let sending = self.agent.post(&url).header("content-type", "application/json");
        let sending =
            self.bearer().into_iter().fold(sending, |sending, key| sending.header("authorization", key));
        let sending = sending.config().timeout_global(Some(self.timeout)).build();
        let started = Instant::now();
        let mut response = sending.send(body).map_err(|error| self.transport_error(&error))?;
        let status = response.status();
        if !status.is_success() {
            return Err(refusal(status.as_u16(), &mut response));
        }
        let kind = header(response.headers(), "content-type").unwrap_or_else(|| "missing".into());
        if !kind.starts_with("text/event-stream") {
            return Err(RequestError::NotStreamed(kind));
        }
        let mut reader = BufReader::new(response.body_mut().as_reader());
        read_reply(&mut reader, started, self.timeout.as_secs())
    }

    fn body(&self, request: &ChatRequest) -> Value {
        let mut body = json!({
            "model": self.model,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(tools) = &request.tools {
            body["tools"] = tools.clone();
        }
        if let Some(thinking) = request.thinking {
            body["chat_template_kwargs"] = json!({ "enable_thinking": thinking });
        }
        body
    }

    fn transport_error(&self, error: &ureq::Error) -> RequestError {
        match error {
            ureq::Error::Timeout(_) => RequestError::Timeout(self.timeout.as_secs()),
            other => RequestError::Transport(other.to_string()),
        }
    }

    fn bearer(&self) -> Option<String> {
        self.key.as_ref().map(|key| format!("Bearer {key}"))
    }

    /// What one of the usual routes tells of the server's version.
    fn version(&self) -> Option<String> {
        let root = self.base.strip_suffix("/v1").unwrap_or(&self.base);
        let routes = [("/health", "version"), ("/version", "version"), ("/props", "build_info")];
        let told = |(path, field): (&str, &str)| {
            let (_, answer) = self.describe(&format!("{root}{path}")).ok()?;
            answer[field].as_str().map(str::to_owned)
        };
        routes.into_iter().find_map(told)
    }

    /// GET, with whatever JSON comes back; null if none does.
    fn describe(&self, url: &str) -> Result<(HeaderMap, Value), String> {
        let sending = self.agent.get(url);
        let sending =
            self.bearer().into_iter().fold(sending, |sending, key| sending.header("authorization", key));
        let sending = sending.config().timeout_global(Some(DESCRIBE)).build();
        let mut response = sending.call().map_err(|error| error.to_string())?;
        let text = response.body_mut().with_config().limit(DESCRIPTION_LIMIT).read_to_string();
        let value = text.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok((response.headers().clone(), value))
    }
}

fn agent(base: &str) -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .user_agent(concat!("lanner-eval/", env!("CARGO_PKG_VERSION")))
        // A decoder would hold tokens back.
        .accept_encoding("identity")
        .timeout_connect(Some(CONNECT));
    let is_local = ["//127.", "//localhost", "//[::1]"].iter().any(|host| base.contains(host));
    // A proxy of the environment is for other machines.
    let config = if is_local { config.proxy(None) } else { config };
    config.build().into()
}

/// The base URL without a final slash, and with `/v1` if it has no path.
fn base_url(url: &str) -> Result<String, EvalError> {
    let trimmed = url.trim_end_matches('/');
    let rest = trimmed.strip_prefix("http://").or(trimmed.strip_prefix("https://"));
    let is_clean = |rest: &&str| !rest.is_empty() && !rest.contains([' ', '?', '#']);
    let rest = rest.filter(is_clean).ok_or_else(|| EvalError::Url(url.to_owned()))?;
    Ok(if rest.contains('/') { trimmed.to_owned() } else { format!("{trimmed}/v1") })
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

fn refusal(status: u16, response: &mut Response<ureq::Body>) -> RequestError {
    let text =
        response.body_mut().with_config().limit(DESCRIPTION_LIMIT).read_to_string().unwrap_or_default();
    let error = serde_json::from_str::<Value>(&text).ok().map(|body| match body.get("error") {
        Some(error) => error_message(error),
        None => body["detail"].as_str().or(body["message"].as_str()).unwrap_or(&text).to_owned(),
    });
    let message: String = error.unwrap_or(text).chars().take(400).collect();
    RequestError::Refused { status, message: message.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_gets_v1_only_without_a_path() {
        let check = |url: &str, expected: Option<&str>| {
            assert_eq!(base_url(url).ok().as_deref(), expected, "{url}");
        };
        check("http://127.0.0.1:8080", Some("http://127.0.0.1:8080/v1"));
        check("http://127.0.0.1:8080/", Some("http://127.0.0.1:8080/v1"));
        check("https://api.example/openai/v1/", Some("https://api.example/openai/v1"));
        check("127.0.0.1:8080", None);
        check("http://", None);
        check("http://a b", None);
        check("http://a/v1?x", None);
    }
}
