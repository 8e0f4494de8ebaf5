//! Stop strings in a stream of text. Knows nothing of tokens.

use crate::{Error, Result};

/// Ends a text at the first stop string, independently of how the text is chunked.
///
/// The stop string that is complete first wins; of two ending together, the longer one. It is not
/// part of the output. Text that may be the start of a stop string stays pending.
#[derive(Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    pending: String,
    matched: Option<usize>,
}

impl StopStrings {
    /// # Errors
    /// [`Error::EmptyStop`]: an empty string would match everywhere.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(Error::EmptyStop(index)),
            None => Ok(Self { stops, ..Self::default() }),
        }
    }

    /// Appends text and returns the new output; empty once a stop string matched.
    pub fn push(&mut self, text: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        self.pending.push_str(text);
        if let Some((start, stop)) = self.first_match() {
            self.matched = Some(stop);
            self.pending.truncate(start);
            return std::mem::take(&mut self.pending);
        }
        let certain =
            self.pending.len() - self.stops.iter().map(|s| overlap(&self.pending, s)).max().unwrap_or(0);
        self.pending.drain(..certain).collect()
    }

    /// Whether a text contains a stop string.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.stops.iter().any(|stop| text.contains(stop))
    }

    /// Whether `text` would complete a stop string.
    pub(crate) fn would_match(&self, text: &str) -> bool {
        self.is_in(&[&self.pending, text].concat())
    }

    /// The stop string that ended the text, if one did.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|i| self.stops[i].as_str())
    }

    /// Returns the pending text at the end.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// Start and index of the winning stop string in the pending text.
    fn first_match(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| Some((self.pending.find(stop)?, i)));
        found.min_by_key(|&(start, i)| (start + self.stops[i].len(), start))
    }
}

/// Length of the longest suffix of `text` that is a proper prefix of `marker`.
pub(crate) fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    let mut starts = (1..=longest).rev().filter(|&i| marker.is_char_boundary(i));
    starts.find(|&i| text.as_bytes().ends_with(&marker.as_bytes()[..i])).unwrap_or(0)
}
