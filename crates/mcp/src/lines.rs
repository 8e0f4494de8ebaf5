//! Lines of a stream, each of limited length.

use std::io::{BufRead, ErrorKind, Result};

/// A line without its end, or that one was too long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Its bytes, without the line feed.
    Whole(Vec<u8>),
    /// Its first bytes; the rest is unread.
    TooLong(Vec<u8>),
}

/// The next line of at most `limit` bytes; `None` at the end.
pub(crate) fn next_line(from: &mut impl BufRead, limit: usize) -> Result<Option<Line>> {
    let mut line = Vec::new();
    loop {
        let available = match from.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok((!line.is_empty()).then_some(Line::Whole(line)));
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let length = end.unwrap_or(available.len());
        if line.len() + length > limit {
            line.extend_from_slice(&available[..limit - line.len()]);
            return Ok(Some(Line::TooLong(line)));
        }
        line.extend_from_slice(&available[..length]);
        from.consume(length + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Some(Line::Whole(line)));
        }
    }
}

/// Reads to the end of a line, and keeps nothing.
pub(crate) fn skip_line(from: &mut impl BufRead) -> Result<()> {
    loop {
        let available = from.fill_buf()?;
        let end = available.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(available.len(), |end| end + 1);
        from.consume(length);
        if end.is_some() || length == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_have_a_limit() {
        let mut from = BufReader::with_capacity(3, &b"ab\n\ncdefgh\nij"[..]);
        let mut next = |limit| next_line(&mut from, limit).unwrap();
        assert_eq!(next(2), Some(Line::Whole(b"ab".into())));
        assert_eq!(next(2), Some(Line::Whole(vec![])));
        assert_eq!(next(4), Some(Line::TooLong(b"cdef".into())));
        skip_line(&mut from).unwrap();
        assert_eq!(next_line(&mut from, 9).unwrap(), Some(Line::Whole(b"ij".into())));
        assert_eq!(next_line(&mut from, 9).unwrap(), None);
    }
}
