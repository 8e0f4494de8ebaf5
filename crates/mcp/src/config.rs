//! The `mcpServers` file that MCP clients share: which servers there are, and how each is reached.

use std::{fmt, path::PathBuf};

use serde_json::{Map, Value};

use crate::secrets::Secrets;

/// Longest name of a server; it is a part of the names of its tools.
const MAX_NAME: usize = 48;

/// The servers of a file.
#[derive(Clone, Debug, Default)]
pub struct ServerList {
    /// In the file's order, without those that it disables.
    pub servers: Vec<ServerConfig>,
    /// Fields that this client does not have, as `server.field`.
    pub ignored: Vec<String>,
}

/// A server by its name.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Letters, digits, `-` and `_`.
    pub name: String,
    /// How it is reached.
    pub transport: TransportConfig,
}

/// How a server is reached. Its values may be secrets, so its text shows no more than the names.
#[derive(Clone)]
pub enum TransportConfig {
    /// A program that speaks over stdin and stdout.
    Stdio(Program),
    /// A URL that speaks streamable HTTP.
    Http(Endpoint),
}

/// A program and what it gets.
#[derive(Clone)]
pub struct Program {
    /// Its path, or a name in `PATH`.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables besides those of this process.
    pub env: Vec<(String, String)>,
    /// The folder that it runs in.
    pub cwd: Option<PathBuf>,
}

/// A URL and the headers of each request.
#[derive(Clone)]
pub struct Endpoint {
    /// URL of the one endpoint, often ending in `/mcp`.
    pub url: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
}

/// Why a file is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is no JSON.
    #[error("it is not valid JSON: {0}")]
    Json(String),
    /// It has no object `mcpServers`.
    #[error("it has no object `mcpServers`, as in {{\"mcpServers\": {{\"NAME\": {{\"command\": \"..\"}}}}}}")]
    NoServers,
    /// A value is not valid.
    #[error("mcpServers.{field} {problem}")]
    Invalid {
        /// The field, such as `files.args`.
        field: String,
        /// The problem, in words.
        problem: String,
    },
    /// It names an environment variable that is not set.
    #[error("mcpServers.{field} names the environment variable {variable}, which is not set")]
    NoVariable {
        /// The field.
        field: String,
        /// The variable.
        variable: String,
    },
}

impl ServerList {
    /// Reads a file's text. `${NAME}` and `${NAME:-DEFAULT}` in its strings become what `variable`
    /// returns for the name.
    ///
    /// # Errors
    /// The text is not such a file, or a server of it is not valid.
    pub fn parse(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<ServerList, ConfigError> {
        let file: Value = serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
        let entries = file.get("mcpServers").and_then(Value::as_object).ok_or(ConfigError::NoServers)?;
        let mut list = ServerList::default();
        for (name, entry) in entries {
            let Some(fields) = entry.as_object() else { return Err(invalid(name, "must be an object")) };
            let mut fields = Fields { server: name, fields: fields.clone(), variable: &variable };
            if let Some(server) = fields.server()? {
                list.ignored.extend(fields.fields.keys().map(|field| format!("{name}.{field}")));
                list.servers.push(server);
            }
        }
        Ok(list)
    }
}

/// The fields of a server that are not read yet.
struct Fields<'a> {
    server: &'a str,
    fields: Map<String, Value>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Fields<'_> {
    /// `None`: it is disabled.
    fn server(&mut self) -> Result<Option<ServerConfig>, ConfigError> {
        let name = self.server;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_part) || name.contains("__") {
            let problem =
                format!("must have a name of 1 to {MAX_NAME} letters, digits, `-` and `_`, without `__`");
            return Err(invalid(name, problem));
        }
        if self.flag("disabled")? {
            return Ok(None);
        }
        let kind = self.text("type")?;
        let (command, url) = (self.text("command")?, self.text("url")?);
        let transport = match (command, url, kind.as_deref()) {
            (_, _, Some("sse")) => {
                let problem = "is `sse`, the transport that MCP replaced; use the server's streamable HTTP URL, or a \
                               program such as mcp-remote";
                return Err(self.invalid("type", problem));
            }
            (Some(command), None, None | Some("stdio")) => TransportConfig::Stdio(self.program(command)?),
            (
                None,
                Some(url),
                None | Some("http" | "streamable-http" | "streamableHttp" | "streamable_http"),
            ) => TransportConfig::Http(self.endpoint(url)?),
            (Some(_), Some(_), _) => {
                return Err(invalid(name, "has both `command` and `url`; keep one of them"));
            }
            (None, None, _) => return Err(invalid(name, "needs a `command` or a `url`")),
            (_, _, Some(kind)) => {
                let problem = format!("is `{kind}`; it must be stdio with a `command`, or http with a `url`");
                return Err(self.invalid("type", problem));
            }
        };
        Ok(Some(ServerConfig { name: name.to_owned(), transport }))
    }

    fn program(&mut self, command: String) -> Result<Program, ConfigError> {
        let args = match self.fields.remove("args") {
            None | Some(Value::Null) => vec![],
            Some(Value::Array(args)) => {
                let text = |(at, arg): (usize, &Value)| self.string(&format!("args[{at}]"), arg);
                args.iter().enumerate().map(text).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(self.invalid("args", "must be an array of strings")),
        };
        let (env, cwd) = (self.pairs("env")?, self.text("cwd")?.map(PathBuf::from));
        Ok(Program { command, args, env, cwd })
    }

    fn endpoint(&mut self, url: String) -> Result<Endpoint, ConfigError> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(self.invalid("url", "must begin with http:// or https://"));
        }
        if url.parse::<ureq::http::Uri>().is_err() {
            return Err(self.invalid("url", "is not a valid URL"));
        }
        let headers = self.pairs("headers")?;
        for (name, value) in &headers {
            let is_name = name.parse::<ureq::http::HeaderName>().is_ok();
            if !is_name || ureq::http::HeaderValue::from_str(value).is_err() {
                return Err(self.invalid(&format!("headers.{name}"), "is not a valid header"));
            }
        }
        Ok(Endpoint { url, headers })
    }

    fn text(&mut self, field: &str) -> Result<Option<String>, ConfigError> {
        match self.fields.remove(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.string(field, &value).map(Some),
        }
    }

    fn flag(&mut self, field: &str) -> Result<bool, ConfigError> {
        match self.fields.remove(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.invalid(field, "must be true or false")),
        }
    }

    fn pairs(&mut self, field: &str) -> Result<Vec<(String, String)>, ConfigError> {
        match self.fields.remove(field) {
            None | Some(Value::Null) => Ok(vec![]),
            Some(Value::Object(pairs)) => {
                let pair = |(name, value): (&String, &Value)| {
                    Ok((name.clone(), self.string(&format!("{field}.{name}"), value)?))
                };
                pairs.iter().map(pair).collect()
            }
            Some(_) => Err(self.invalid(field, "must be an object of strings")),
        }
    }

    fn string(&self, field: &str, value: &Value) -> Result<String, ConfigError> {
        let Some(text) = value.as_str() else { return Err(self.invalid(field, "must be a string")) };
        let expanded = expand(text, self.variable);
        expanded.map_err(|variable| ConfigError::NoVariable {
            field: format!("{}.{field}", self.server),
            variable,
        })
    }

    fn invalid(&self, field: &str, problem: impl Into<String>) -> ConfigError {
        invalid(&format!("{}.{field}", self.server), problem)
    }
}

fn invalid(field: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field: field.to_owned(), problem: problem.into() }
}

/// Replaces `${NAME}` and `${NAME:-DEFAULT}`. The error is the name of a variable that is not set.
fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inner, after)) = after.split_once('}') else { break };
        let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, text)| (name, Some(text)));
        let value = variable(name).or_else(|| default.map(str::to_owned));
        expanded.push_str(before);
        expanded.push_str(&value.ok_or_else(|| name.to_owned())?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Text of a URL with `%XX` and `+` replaced.
fn percent_decoded(text: &str) -> String {
    let (mut decoded, mut rest) = (vec![], text.as_bytes());
    while let [first, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *first == b'%').and_then(|code| str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        rest = if byte.is_some() { &after[2..] } else { after };
        decoded.push(byte.unwrap_or(if *first == b'+' { b' ' } else { *first }));
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

impl TransportConfig {
    /// Whether requests to `url` are requests to this server.
    pub fn is_at(&self, url: &str) -> bool {
        let own = match self {
            TransportConfig::Stdio(_) => return false,
            TransportConfig::Http(endpoint) => &endpoint.url,
        };
        own.trim_end_matches('/') == url.trim_end_matches('/')
    }

    pub(crate) fn secrets(&self) -> Secrets {
        let pairs = match self {
            TransportConfig::Stdio(program) => &program.env,
            TransportConfig::Http(endpoint) => &endpoint.headers,
        };
        let of_url = match self {
            TransportConfig::Http(endpoint) => endpoint.secrets(),
            TransportConfig::Stdio(_) => vec![],
        };
        Secrets::new(pairs.iter().map(|(_, value)| &**value).chain(of_url.iter().map(String::as_str)))
    }
}

impl fmt::Debug for TransportConfig {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fn names(pairs: &[(String, String)]) -> Vec<&str> {
            pairs.iter().map(|(name, _)| &**name).collect()
        }
        match self {
            TransportConfig::Stdio(program) => {
                write!(f, "{} {:?} env {:?}", program.command, program.args, names(&program.env))
            }
            TransportConfig::Http(endpoint) => {
                write!(f, "{} headers {:?}", endpoint.shown_url(), names(&endpoint.headers))
            }
        }
    }
}

impl Endpoint {
    /// Whether it is on this machine, where no proxy leads.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.url.parse::<ureq::http::Uri>().ok().and_then(|url| url.host().map(str::to_owned));
        host.is_some_and(|host| host == "localhost" || host == "[::1]" || host.starts_with("127."))
    }

    /// The query and each value of it, and user and password.
    fn secrets(&self) -> Vec<String> {
        let (url, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let query = query.split('#').next().unwrap_or_default();
        let values = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value));
        let authority = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user).unwrap_or_default();
        let parts = [query, user].into_iter().chain(values).chain(user.split(':'));
        parts.flat_map(|part| [part.to_owned(), percent_decoded(part)]).collect()
    }

    /// The URL without what may be secret: user, password and query.
    pub(crate) fn shown_url(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let host = authority.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{host}{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServerList, ConfigError> {
        ServerList::parse(text, |name| (name == "TOKEN").then(|| "secret-value".into()))
    }

    #[test]
    fn servers_are_read_in_order_with_variables_and_without_disabled_ones() {
        let list = parse(
            r#"{"mcpServers": {
                "z": {"command": "node", "args": ["a", "${DIR:-/tmp}"], "env": {"KEY": "${TOKEN}"}, "cwd": "/x"},
                "off": {"command": "x", "disabled": true},
                "a": {"type": "http", "url": "https://u:p@example.com/mcp?key=query-key",
                      "headers": {"Authorization": "Bearer ${TOKEN}"}, "autoApprove": ["f"]}}}"#,
        )
        .unwrap();
        let names: Vec<&str> = list.servers.iter().map(|server| &*server.name).collect();
        assert_eq!((names, &*list.ignored), (vec!["z", "a"], &["a.autoApprove".to_owned()][..]));
        let TransportConfig::Stdio(program) = &list.servers[0].transport else { panic!("{list:?}") };
        assert_eq!(program.args, ["a", "/tmp"]);
        assert_eq!(program.env, [("KEY".to_owned(), "secret-value".to_owned())]);
        let shown = format!("{list:?}");
        assert!(shown.contains("https://example.com/mcp") && shown.contains("Authorization"), "{shown}");
        for secret in ["secret-value", "query-key", "u:p"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn values_of_a_url_are_secrets() {
        let url = "https://someone:pass%40word@example.com/mcp?user=abcdefg&key=s%C3%A9cret%20key#part";
        let text = format!(r#"{{"mcpServers": {{"a": {{"url": "{url}"}}}}}}"#);
        let secrets = parse(&text).unwrap().servers[0].transport.secrets();
        for secret in ["abcdefg", "s%C3%A9cret%20key", "sécret key", "pass@word", "pass%40word", "someone"] {
            assert_eq!(secrets.mask(&format!("({secret})")), "(***)", "{secret}");
        }
        assert_eq!(secrets.mask("example.com/mcp"), "example.com/mcp");
    }

    #[test]
    fn invalid_file_is_refused_by_field() {
        for (text, expected) in [
            ("[", "it is not valid JSON"),
            ("{}", "it has no object `mcpServers`"),
            (r#"{"mcpServers": {"a": 1}}"#, "mcpServers.a must be an object"),
            (r#"{"mcpServers": {"a": {}}}"#, "mcpServers.a needs a `command` or a `url`"),
            (r#"{"mcpServers": {"a__b": {"command": "x"}}}"#, "mcpServers.a__b must have a name"),
            (r#"{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}"#, "keep one of them"),
            (r#"{"mcpServers": {"a": {"command": "x", "args": "y"}}}"#, "mcpServers.a.args must be an array"),
            (
                r#"{"mcpServers": {"a": {"command": "x", "env": {"K": 1}}}}"#,
                "mcpServers.a.env.K must be a string",
            ),
            (
                r#"{"mcpServers": {"a": {"command": "${NO}"}}}"#,
                "mcpServers.a.command names the environment variable NO",
            ),
            (r#"{"mcpServers": {"a": {"url": "ftp://x"}}}"#, "mcpServers.a.url must begin with http"),
            (
                r#"{"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}"#,
                "the transport that MCP replaced",
            ),
            (
                r#"{"mcpServers": {"a": {"url": "http://x", "headers": {"K": "a\nb"}}}}"#,
                "headers.K is not a valid header",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
