//! The web page's files over HTTP. `tools/page.sh` tests the page itself in a browser.

use crate::support::{
    client,
    server::{Setup, TestServer},
};

const BROWSER: &str = "Accept: text/html,application/xhtml+xml\r\nAccept-Encoding: gzip, deflate\r\n";

fn get(server: &TestServer, path: &str, headers: &str) -> client::Reply {
    client::request(server.address, &format!("GET {path}"), headers, b"")
}

/// The value of a header.
fn header<'a>(reply: &'a client::Reply, name: &str) -> &'a str {
    let mut lines = reply.head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(own, _)| own.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
}

#[test]
fn browser_gets_the_page_and_a_program_a_line() {
    let server = Setup { api_key: Some("k"), ..Setup::default() }.says("x");
    let page = get(&server, "/", BROWSER);
    assert_eq!((page.status, header(&page, "content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(header(&page, "content-encoding"), "gzip");
    let policy = header(&page, "content-security-policy");
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for headers in ["", "Accept: */*\r\n", "Accept: application/json\r\n"] {
        assert_eq!(get(&server, "/", headers).body, "Lanner is running", "{headers}");
    }
}

#[test]
fn file_of_the_page_needs_no_key_and_is_revalidated() {
    let server = Setup { api_key: Some("k"), ..Setup::default() }.says("x");
    for (name, media) in [
        ("app.js", "text/javascript; charset=utf-8"),
        ("math.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ] {
        let path = format!("/page/{name}");
        let file = get(&server, &path, "");
        assert_eq!((file.status, header(&file, "content-type")), (200, media), "{name}");
        let etag = header(&file, "etag");
        let again = get(&server, &path, &format!("If-None-Match: {etag}\r\n"));
        assert_eq!((again.status, &*again.body), (304, ""), "{name}");
        assert_eq!(get(&server, &path, "If-None-Match: \"0\"\r\n").status, 200, "{name}");
    }
}

#[test]
fn missing_file_and_client_without_gzip_get_an_error() {
    let server = Setup::default().says("x");
    for path in ["/page/none.js", "/page/digest.txt", "/page/..%2fmod.rs", "/page/%ff", "/page/index.html"] {
        let reply = get(&server, path, "");
        assert_eq!(
            (reply.status, reply.json()["error"]["code"].as_str()),
            (404, Some("unknown_url")),
            "{path}"
        );
    }
    let reply = get(&server, "/page/app.js", "Accept-Encoding: identity\r\n");
    assert_eq!(reply.status, 406);
    assert!(reply.body.contains("send `Accept-Encoding: gzip`"), "{}", reply.body);
}
