//! A minimal HTTP client that exposes every byte.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Instant,
};

use serde_json::Value;

use super::wait::PATIENCE;

#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The JSON of every server-sent event but `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.body.ends_with("data: [DONE]\n\n")
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    request(address, &format!("GET {path}"), "", b"")
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    post_raw(address, path, body.to_string().as_bytes())
}

pub(crate) fn post_raw(address: SocketAddr, path: &str, body: &[u8]) -> Reply {
    request(address, &format!("POST {path}"), "Content-Type: application/json\r\n", body)
}

/// `line` is method and path, `headers` whole lines.
pub(crate) fn request(address: SocketAddr, line: &str, headers: &str, body: &[u8]) -> Reply {
    let mut stream = open(address, line, headers, body);
    let (mut bytes, mut some, started) = (Vec::new(), vec![0; 1 << 16], Instant::now());
    loop {
        match stream.read(&mut some) {
            Ok(0) => break,
            // A stream that never ends sends comments meanwhile.
            Ok(read) if started.elapsed() < PATIENCE => bytes.extend_from_slice(&some[..read]),
            // A server that refuses a body early may reset the connection after its answer.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => panic!("{line}: no whole answer within {PATIENCE:?}: {}", String::from_utf8_lossy(&bytes)),
        }
    }
    parse(&bytes)
}

/// Sends a request and leaves the reply on the socket.
pub(crate) fn open(address: SocketAddr, line: &str, headers: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    let length = body.len();
    let head =
        format!("{line} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let _ = stream.write_all(body);
    stream
}

fn parse(bytes: &[u8]) -> Reply {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP reply: {text:?}"));
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Reply {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        body: if chunked { join_chunks(body.as_bytes()) } else { body.to_owned() },
        head: head.to_owned(),
    }
}

fn join_chunks(mut rest: &[u8]) -> String {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
    String::from_utf8(body).unwrap()
}
