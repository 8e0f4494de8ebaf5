//! Server-sent events of an HTTP answer.

use std::io::{BufRead, Error, ErrorKind, Result};

use crate::lines::{Line, next_line};

/// An event's data, and the id to resume after it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub data: String,
    pub id: Option<String>,
}

/// The next event with data or an id; `None` at the end. One of more than `limit` bytes is an
/// error.
pub(crate) fn next_event(from: &mut impl BufRead, limit: usize) -> Result<Option<SseEvent>> {
    let (mut event, mut bytes) = (SseEvent::default(), 0);
    while let Some(line) = next_line(from, limit)? {
        let Line::Whole(line) = line else { return Err(too_long(limit)) };
        bytes += line.len();
        if bytes > limit {
            return Err(too_long(limit));
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            match event.data.is_empty() && event.id.is_none() {
                true => continue,
                false => return Ok(Some(event)),
            }
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if !event.data.is_empty() {
                    event.data.push('\n');
                }
                event.data.push_str(value);
            }
            "id" => event.id = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(None)
}

fn too_long(limit: usize) -> Error {
    Error::new(ErrorKind::InvalidData, format!("an event has more than {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_split_at_empty_lines() {
        let mut from =
            &b": hi\n\nid: 1\ndata\n\nevent: message\r\ndata: {\"a\":\r\ndata:1}\r\n\r\ndata: cut"[..];
        let mut next = || next_event(&mut from, 100).unwrap();
        assert_eq!(next(), Some(SseEvent { data: String::new(), id: Some("1".into()) }));
        assert_eq!(next(), Some(SseEvent { data: "{\"a\":\n1}".into(), id: None }));
        assert_eq!(next(), None);
        let long = format!("data: {}\ndata: {}\n\n", "x".repeat(60), "x".repeat(60));
        assert!(next_event(&mut long.as_bytes(), 100).is_err());
    }
}
