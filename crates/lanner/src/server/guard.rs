//! Who may ask: the Host header against DNS rebinding, the API key, and panics turned into error objects.

use std::{any::Any, net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{
        StatusCode,
        header::{AUTHORIZATION, HOST},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::wire::error::ApiError;

pub struct Guard {
    /// `None` if the server listens beyond loopback: then any name may be its own.
    allowed_hosts: Option<Vec<String>>,
    api_key: Option<String>,
}

impl Guard {
    pub fn new(listens_on: IpAddr, allowed_hosts: Vec<String>, api_key: Option<String>) -> Guard {
        let allowed_hosts = listens_on.is_loopback().then_some(allowed_hosts);
        Guard { allowed_hosts, api_key }
    }

    fn check(&self, request: &Request) -> Result<(), ApiError> {
        self.check_host(request)?;
        match request.uri().path() {
            path if path.starts_with("/v1/") || path == "/metrics" => self.check_key(request),
            _ => Ok(()),
        }
    }

    /// A web page can point its own name at 127.0.0.1 and read our answers; browsers then send that name.
    fn check_host(&self, request: &Request) -> Result<(), ApiError> {
        let Some(allowed) = &self.allowed_hosts else { return Ok(()) };
        // Browsers always send a Host, so what comes without one is no web page.
        let Some(header) = request.headers().get(HOST) else { return Ok(()) };
        let name = host_name(header.to_str().unwrap_or_default());
        let loopback = name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if loopback || allowed.iter().any(|host| host.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        let message = format!(
            "this server listens on loopback and does not answer for the host `{name}`; \
             start it with --allow-host {name} if that is wanted"
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, message).code("host_not_allowed"))
    }

    fn check_key(&self, request: &Request) -> Result<(), ApiError> {
        let Some(key) = &self.api_key else { return Ok(()) };
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = header
            .and_then(|value| value.split_once(' '))
            .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()));
        let message = match given {
            Some(given) if constant_time_eq(given.as_bytes(), key.as_bytes()) => return Ok(()),
            Some(_) => "the API key is wrong",
            None => "this server asks for an API key: send `Authorization: Bearer KEY`",
        };
        Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"))
    }
}

pub async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// A panic is our bug: the client learns that much, the log has the rest.
pub fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the server hit a bug on this request; its log says more",
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

/// Takes as long for a wrong key as for a right one of the same length.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y))) == 0
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

    #[test]
    fn a_panicking_handler_is_a_500() {
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

    #[test]
    fn host_names_lose_their_port() {
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
    fn keys_match_only_themselves() {
        assert!(constant_time_eq(b"key", b"key"));
        assert!(!constant_time_eq(b"key", b"kez"));
        assert!(!constant_time_eq(b"key", b"keys"));
    }
}
