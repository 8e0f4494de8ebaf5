//! A minimal HTTP client that sends many requests over one connection.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::{PATIENCE, requests::Ask};

/// A keep-alive connection.
pub(super) struct Connection {
    pub address: SocketAddr,
    pub stream: Option<BufReader<TcpStream>>,
}

pub(super) struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
    stays: bool,
}

impl Connection {
    pub(super) fn send(&mut self, ask: &Ask) -> std::io::Result<Reply> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                BufReader::new(stream)
            }
        };
        let head = format!(
            "{} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n{}\r\n",
            ask.line,
            self.address,
            ask.body.len(),
            ask.headers
        );
        stream.get_mut().write_all(&[head.as_bytes(), &ask.body].concat())?;
        let reply = read(&mut stream, ask.line.starts_with("HEAD"))?;
        self.stream = reply.stays.then_some(stream);
        Ok(reply)
    }
}

pub(super) fn read(stream: &mut BufReader<TcpStream>, without_body: bool) -> std::io::Result<Reply> {
    let odd = |what: &str| std::io::Error::other(what.to_owned());
    let line = |stream: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        match stream.read_line(&mut line)? {
            0 => Err(odd("the connection ended in an answer")),
            _ => Ok(line.trim_end().to_ascii_lowercase()),
        }
    };
    let status = line(stream)?
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| odd("no status"))?;
    let (mut length, mut chunked, mut stays) = (0, false, true);
    loop {
        let header = line(stream)?;
        match header.split_once(": ") {
            None => break,
            Some(("content-length", value)) => length = value.parse().map_err(std::io::Error::other)?,
            Some(("transfer-encoding", value)) => chunked = value == "chunked",
            Some(("connection", value)) => stays = value != "close",
            Some(_) => {}
        }
    }
    let mut body = vec![];
    let mut more = chunked;
    while more {
        let size = usize::from_str_radix(&line(stream)?, 16).map_err(std::io::Error::other)?;
        let at = body.len();
        body.resize(at + size + 2, 0);
        stream.read_exact(&mut body[at..])?;
        body.truncate(at + size);
        more = size > 0;
    }
    if !chunked && !without_body {
        body.resize(length, 0);
        stream.read_exact(&mut body)?;
    }
    Ok(Reply { status, body, stays })
}
