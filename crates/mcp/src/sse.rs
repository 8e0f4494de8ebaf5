//! Server-sent events of an HTTP answer.

use std::io::{BufRead, Error, ErrorKind, Result};

use crate::lines::{Line, next_line};

/// An event's data, and the id to resume after it; both may be missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub data: String,
    pub id: Option<String>,
    /// Bytes that were read for it, comments and ends of lines included.
    pub bytes: usize,
}

/// The next event; `None` at the end. One of more than `limit` bytes is an error. Comments and
/// blank lines are events without data, so that the caller can count them.
pub(crate) fn next_event(from: &mut impl BufRead, limit: usize) -> Result<Option<SseEvent>> {
    let mut event = SseEvent::default();
    while let Some(line) = next_line(from, limit)? {
        let Line::Whole(line) = line else { return Err(too_long(limit)) };
        event.bytes += line.len() + 1;
        if event.bytes > limit {
            return Err(too_long(limit));
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            return Ok(Some(event));
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
        let event = |data: &str, id: Option<&str>, bytes| {
            Some(SseEvent { data: data.into(), id: id.map(str::to_owned), bytes })
        };
        assert_eq!(next(), event("", None, 6));
        assert_eq!(next(), event("", Some("1"), 12));
        assert_eq!(next(), event("{\"a\":\n1}", None, 40));
        assert_eq!(next(), None);
        let long = format!("data: {}\ndata: {}\n\n", "x".repeat(60), "x".repeat(60));
        assert!(next_event(&mut long.as_bytes(), 100).is_err());
    }
}
