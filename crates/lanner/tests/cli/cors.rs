//! Web pages of other sites: refused, unless `--cors-origin` names theirs.

use lanner::config::CorsOrigin;

use crate::support::{
    client::{self, Reply},
    server::{Setup, TestServer},
};

const PAGE: &str = "https://app.example";

fn server(origins: &[&str]) -> TestServer {
    let cors_origins: Vec<CorsOrigin> = origins.iter().map(|origin| origin.parse().unwrap()).collect();
    Setup { cors_origins, api_key: Some("secret"), ..Setup::default() }.says("x")
}

fn header(reply: &Reply, name: &str) -> Option<String> {
    let mut lines = reply.head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_ascii_lowercase())
}

fn preflight(server: &TestServer, origin: &str) -> Reply {
    let headers = format!(
        "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization, content-type\r\n"
    );
    client::request(server.address, "OPTIONS /v1/chat/completions", &headers, b"")
}

fn models(server: &TestServer, origin: &str, key: &str) -> Reply {
    let headers = format!("Origin: {origin}\r\nAuthorization: Bearer {key}\r\n");
    client::request(server.address, "GET /v1/models", &headers, b"")
}

#[test]
fn page_of_an_allowed_origin_may_send_and_read() {
    for (origins, allowed) in [([PAGE], PAGE), (["*"], "*")] {
        let server = server(&origins);
        let reply = preflight(&server, PAGE);
        assert_eq!(reply.status, 200, "{}", reply.head);
        assert_eq!(header(&reply, "access-control-allow-origin").as_deref(), Some(allowed));
        let headers = header(&reply, "access-control-allow-headers").unwrap();
        assert!(headers.contains("authorization") && headers.contains("content-type"), "{headers}");
        let methods = header(&reply, "access-control-allow-methods").unwrap();
        assert!(["get", "post", "delete"].iter().all(|method| methods.contains(method)), "{methods}");
        // An error can be read too.
        for (key, status) in [("secret", 200), ("wrong", 401)] {
            let reply = models(&server, PAGE, key);
            assert_eq!(reply.status, status, "{}", reply.body);
            assert_eq!(header(&reply, "access-control-allow-origin").as_deref(), Some(allowed), "{key}");
            let exposed = header(&reply, "access-control-expose-headers").unwrap();
            assert!(exposed.contains("x-request-id") && exposed.contains("retry-after"), "{exposed}");
        }
    }
}

#[test]
fn page_of_another_origin_is_refused() {
    let server = server(&[PAGE]);
    for origin in ["https://evil.example", "https://app.example.evil", "http://app.example", "null"] {
        assert_eq!(header(&preflight(&server, origin), "access-control-allow-origin"), None, "{origin}");
        let reply = models(&server, origin, "secret");
        assert_eq!(reply.status, 403, "{origin}: {}", reply.body);
        assert_eq!(header(&reply, "access-control-allow-origin"), None, "{origin}");
    }
}

#[test]
fn server_without_cors_origins_sends_no_cors_headers() {
    let server = server(&[]);
    let replies = [
        preflight(&server, PAGE),
        models(&server, PAGE, "secret"),
        models(&server, "http://localhost:3000", "secret"),
    ];
    assert_eq!(replies.each_ref().map(|reply| reply.status), [403, 403, 200]);
    for reply in &replies {
        assert!(!reply.head.to_ascii_lowercase().contains("access-control-"), "{}", reply.head);
    }
}
