//! Stop strings over a stream of text. Knows nothing of tokens.

use crate::{Error, Result};

/// Ends a text at the first stop string, however the text is cut into pieces.
///
/// The stop string that is complete first wins (of two ending together, the longer), as if the text came character by
/// character. It is not part of the output. Text that may be the start of a stop string is held back until it is known.
#[derive(Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    matched: Option<usize>,
}

impl StopStrings {
    /// Refuses an empty string, which would match everywhere.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(Error::EmptyStop(index)),
            None => Ok(Self { stops, ..Self::default() }),
        }
    }

    /// The text that is certainly part of the output; nothing once a stop string was met.
    pub fn push(&mut self, text: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        if let Some((start, stop)) = self.first_match() {
            self.matched = Some(stop);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let certain = self.held.len() - self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        self.held.drain(..certain).collect()
    }

    /// Whether a text holds a whole stop string.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.stops.iter().any(|stop| text.contains(stop))
    }

    /// The stop string that ended the text, if one did.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|i| self.stops[i].as_str())
    }

    /// The text held back, now that no more will come.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the winning stop string starts in the held text, and which it is.
    fn first_match(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| Some((self.held.find(stop)?, i)));
        found.min_by_key(|&(start, i)| (start + self.stops[i].len(), start))
    }
}

/// How many bytes at the end of `text` are the start, but not the whole, of `marker`.
pub(crate) fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    let mut starts = (1..=longest).rev().filter(|&i| marker.is_char_boundary(i));
    starts.find(|&i| text.as_bytes().ends_with(&marker.as_bytes()[..i])).unwrap_or(0)
}
