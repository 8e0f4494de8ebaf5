//! Which requests are allowed: the Host header against DNS rebinding, the Origin header against
//! other sites' pages, and the API key, which also identifies the client. Also turns panics into
//! error objects.

use std::{any::Any, net::IpAddr, sync::Arc, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{
        HeaderName, StatusCode,
        header::{AUTHORIZATION, HOST, ORIGIN},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{key_limits::KeyUsage, openai::error::ApiError, request_log::RequestLog, tenant::Client};
use crate::config::{ApiKey, CorsOrigin, KeyDigest, ServeConfig, key_digest};

/// The header in which Anthropic's clients send the key.
const ANTHROPIC_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Suffixes of the local network, which cannot be registered publicly.
const LOCAL: [&str; 4] = [".local", ".lan", ".internal", ".home.arpa"];

pub(super) struct Auth {
    on_loopback: bool,
    allowed_hosts: Vec<String>,
    cors_origins: Vec<CorsOrigin>,
    /// Empty if clients need none.
    keys: Vec<KnownKey>,
    share_prefixes: bool,
}

/// A key that clients may send, and what it has used.
struct KnownKey {
    name: Arc<str>,
    digest: KeyDigest,
    usage: KeyUsage,
}

impl Auth {
    pub(super) fn new(config: &ServeConfig) -> Auth {
        let known = |ApiKey { name, digest, limits }: &ApiKey| KnownKey {
            name: name.clone(),
            digest: *digest,
            usage: KeyUsage::new(*limits, Instant::now()),
        };
        Auth {
            on_loopback: config.address.ip().is_loopback(),
            allowed_hosts: config.allowed_hosts.clone(),
            cors_origins: config.cors_origins.clone(),
            keys: config.api_keys.as_slice().iter().map(known).collect(),
            share_prefixes: config.share_prefixes,
        }
    }

    /// The key of a request that is allowed, if it needs one.
    fn check(&self, request: &Request) -> Result<Option<&KnownKey>, ApiError> {
        self.check_host(request)?;
        self.check_origin(request)?;
        match request.uri().path() {
            "/" | "/health" | "/docs" | "/openapi.json" => Ok(None),
            path if path.starts_with("/page/") || self.keys.is_empty() => Ok(None),
            _ => self.check_key(request).map(Some),
        }
    }

    /// With a single key, all clients are the same.
    fn client(&self, key: Option<&KnownKey>) -> Client {
        let key = key.filter(|_| self.keys.len() > 1).map(|key| key.name.clone());
        Client { key, shares_prefixes: self.share_prefixes }
    }

    /// DNS rebinding: a web page can point its own host name at this machine; the browser then
    /// sends that name.
    fn check_host(&self, request: &Request) -> Result<(), ApiError> {
        // Browsers always send a Host, so a request without one is not from a web page.
        let names = request.headers().get_all(HOST).into_iter();
        let mut names = names.map(|header| host_name(header.to_str().unwrap_or_default()));
        let Some(name) = names.find(|name| !self.is_own(name)) else { return Ok(()) };
        let scope = if self.on_loopback { "listens on loopback" } else { "serves the local network" };
        let message = format!(
            "this server {scope} and does not answer for the host `{name}`; to allow it, start with --allow-host {name}"
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, message).code("host_not_allowed"))
    }

    /// Browsers send the origin of a page that calls another site; other clients need not send one.
    fn check_origin(&self, request: &Request) -> Result<(), ApiError> {
        let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or("null");
        let is_allowed = match origin.split_once("://") {
            // The server itself, or a page on the same host.
            Some(("http" | "https", authority)) => self.is_own(host_name(authority)),
            // A desktop program or a browser extension.
            Some(_) => true,
            // A sandboxed frame of any site sends `null`.
            None => false,
        };
        if is_allowed || self.cors_origins.iter().any(|allowed| allowed.allows(origin)) {
            return Ok(());
        }
        let message = format!(
            "this server does not answer pages of `{origin}`; to allow them, start with --cors-origin {origin}"
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, message).code("origin_not_allowed"))
    }

    /// Whether a host name is allowed, or safe from rebinding. For a server that others can reach,
    /// IP addresses are safe, since they need no DNS lookup, and so are names that cannot be
    /// registered publicly.
    fn is_own(&self, name: &str) -> bool {
        let address = name.parse::<IpAddr>().ok();
        let lower = name.to_ascii_lowercase();
        let is_local = |name: &str| !name.contains('.') || LOCAL.iter().any(|end| name.ends_with(end));
        lower == "localhost"
            || address.is_some_and(|address| address.is_loopback() || !self.on_loopback)
            || address.is_none() && !self.on_loopback && is_local(&lower)
            || self.allowed_hosts.iter().any(|host| host == "*" || host.eq_ignore_ascii_case(name))
    }

    fn check_key(&self, request: &Request) -> Result<&KnownKey, ApiError> {
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let bearer = header(AUTHORIZATION)
            .and_then(|value| value.split_once(' '))
            .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()));
        let given = bearer.or_else(|| header(ANTHROPIC_KEY).map(str::trim));
        let message = match given {
            Some(_) => "the API key is wrong",
            None => "this server requires an API key; send `Authorization: Bearer KEY` or `x-api-key: KEY`",
        };
        let wrong = || ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key");
        given.and_then(|given| self.find(given)).ok_or_else(wrong)
    }

    /// Compares every key in full, so that timing reveals nothing about the keys.
    fn find(&self, given: &str) -> Option<&KnownKey> {
        let digest = key_digest(given);
        self.keys.iter().fold(None, |found, key| {
            let is_same = constant_time_eq(&digest, &key.digest);
            if is_same { Some(key) } else { found }
        })
    }
}

pub(super) async fn authorize(State(auth): State<Arc<Auth>>, mut request: Request, next: Next) -> Response {
    let extensions = request.extensions();
    if let (Some(log), Some(route)) = (extensions.get::<Arc<RequestLog>>(), extensions.get::<MatchedPath>()) {
        log.set_route(route.as_str());
    }
    match auth.check(&request) {
        Ok(key) => {
            let client = auth.client(key);
            if let (Some(key), Some(log)) = (key, request.extensions().get::<Arc<RequestLog>>()) {
                log.set_key(client.key.clone(), key.usage.clone());
            }
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// Replaces the admin routes with --no-admin.
pub(super) async fn no_admin(request: Request, _: Next) -> ApiError {
    let message =
        format!("{} is disabled, because this server was started with --no-admin", request.uri().path());
    ApiError::new(StatusCode::FORBIDDEN, message).code("admin_disabled")
}

/// The response after a panic; the log has the details.
pub(super) fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the server hit a bug on this request; its log has the details",
    )
    .into_response()
}

/// The name in `name`, `name:port`, `[v6]` or `[v6]:port`.
fn host_name(header: &str) -> &str {
    match header.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, _)) => v6,
        None => header.split_once(':').map_or(header, |(name, _)| name),
    }
}

/// Takes the same time for any two digests.
fn constant_time_eq(a: &KeyDigest, b: &KeyDigest) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y))) == 0
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use axum::{Router, routing::get};
    use tokio::{net::TcpListener, runtime::Runtime};
    use tower_http::catch_panic::CatchPanicLayer;

    use super::*;
    use crate::config::ApiKeys;

    #[test]
    fn panic_in_a_handler_is_a_500() {
        async fn bug() -> StatusCode {
            panic!("a bug, on purpose")
        }
        let router = Router::new().route("/", get(bug)).layer(CatchPanicLayer::custom(panicked));
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        runtime.spawn(axum::serve(listener, router).into_future());
        client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 500") && reply.contains("server_error"), "{reply}");
        assert!(!reply.contains("on purpose"), "{reply}");
    }

    fn auth(listens_on: &str, host: &str, keys: &[&str]) -> Auth {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        Auth::new(&ServeConfig {
            address: (listens_on.parse::<IpAddr>().unwrap(), 0).into(),
            api_keys: ApiKeys::new(&keys, None).unwrap(),
            allowed_hosts: vec![host.into()],
            ..ServeConfig::default()
        })
    }

    #[test]
    fn host_and_origin_that_could_be_rebound_are_rejected() {
        let check = |listens_on: &str, header: axum::http::HeaderName, value: &str| {
            let auth = auth(listens_on, "owl.example", &[]);
            let request = Request::builder().uri("/health").header(header, value);
            let request = request.body(axum::body::Body::empty()).unwrap();
            auth.check(&request).map(|_| ()).map_err(|error| error.body.code)
        };
        let (host, origin) = (Err(Some("host_not_allowed")), Err(Some("origin_not_allowed")));
        for (name, on_loopback, elsewhere) in [
            ("localhost:80", Ok(()), Ok(())),
            ("127.0.0.1:11436", Ok(()), Ok(())),
            ("[::1]", Ok(()), Ok(())),
            ("owl.example:80", Ok(()), Ok(())),
            ("10.0.0.1", host, Ok(())),
            ("[fe80::1]:80", host, Ok(())),
            ("box:11436", host, Ok(())),
            ("Mac.local", host, Ok(())),
            ("evil.example", host, host),
            ("10.0.0.1.evil.example", host, host),
            ("local.evil", host, host),
        ] {
            assert_eq!(check("127.0.0.1", HOST, name), on_loopback, "{name}");
            assert_eq!(check("0.0.0.0", HOST, name), elsewhere, "{name}");
            assert_eq!(check("192.168.1.2", HOST, name), elsewhere, "{name}");
        }
        for (page, on_loopback, elsewhere) in [
            ("http://localhost:3000", Ok(()), Ok(())),
            ("https://owl.example", Ok(()), Ok(())),
            ("http://192.168.1.2:11436", origin, Ok(())),
            ("https://evil.example", origin, origin),
            ("null", origin, origin),
            ("vscode-webview://x", Ok(()), Ok(())),
        ] {
            assert_eq!(check("127.0.0.1", ORIGIN, page), on_loopback, "{page}");
            assert_eq!(check("0.0.0.0", ORIGIN, page), elsewhere, "{page}");
        }
        assert!(auth("0.0.0.0", "*", &[]).is_own("any.example"));
    }

    #[test]
    fn host_name_drops_the_port() {
        for (header, name) in [
            ("localhost", "localhost"),
            ("a.b:80", "a.b"),
            ("[::1]:11436", "::1"),
            ("[::1]", "::1"),
            ("", ""),
        ] {
            assert_eq!(host_name(header), name);
        }
    }

    #[test]
    fn key_is_found_among_several() {
        let auth = auth("127.0.0.1", "*", &["a", "b", "c"]);
        for key in ["a", "b", "c"] {
            assert_eq!(auth.find(key).map(|found| found.digest), Some(key_digest(key)));
        }
        assert!(["", "d", "ab", "A"].iter().all(|key| auth.find(key).is_none()));
        assert!(constant_time_eq(&[7; 32], &[7; 32]));
        let other: KeyDigest = std::array::from_fn(|i| if i == 31 { 8 } else { 7 });
        assert!(!constant_time_eq(&[7; 32], &other));
    }
}
