//! Splits a reply into reasoning and content at markers such as `<think>`. Knows nothing of tokens.

use crate::{Delta, stop::overlap};

/// Markers around a model's reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Markers {
    /// Before the reasoning, such as `<think>`.
    pub open: String,
    /// After it, such as `</think>`.
    pub close: String,
}

/// Known markers: most families; Magistral; Kimi-VL; Seed-OSS; Gemma 4; Command R; EXAONE.
const KNOWN: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thought>", "</thought>"),
];

impl Markers {
    /// The known markers that a chat template's source mentions.
    pub fn detect(template: &str) -> Option<Self> {
        let (open, close) =
            KNOWN.iter().find(|(open, close)| template.contains(open) || template.contains(close))?;
        Some(Self { open: (*open).to_owned(), close: (*close).to_owned() })
    }
}

impl Default for Markers {
    fn default() -> Self {
        Self { open: KNOWN[0].0.to_owned(), close: KNOWN[0].1.to_owned() }
    }
}

/// Whether a prompt ends with the opening marker, ignoring whitespace.
///
/// Only the end counts: a user's `<think>` in a question does not turn the answer into reasoning.
pub fn starts_in_reasoning(prompt: &str, markers: &Markers) -> bool {
    prompt.trim_end().ends_with(&markers.open)
}

/// Separates reasoning from content, independently of how the text is chunked.
///
/// - Reasoning is one block at the start of the reply. Markers within content are content.
/// - The opening marker is optional if the prompt ended with it.
/// - Without a closing marker, everything is reasoning.
/// - Dropped: the markers; whitespace before the opening one; line feeds right after it, right
///   before the closing one and right after that. All other characters are kept in order.
#[derive(Debug)]
pub struct Reasoning {
    markers: Markers,
    state: State,
    /// Whether line feeds at the start of `pending` belong to a marker.
    skip_line_feeds: bool,
    pending: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Only whitespace so far.
    Start {
        inside: bool,
    },
    Inside,
    Outside,
}

impl Reasoning {
    /// A splitter at the start of a reply; `inside` if the prompt already opened the reasoning.
    pub fn new(markers: Markers, inside: bool) -> Self {
        Self { markers, state: State::Start { inside }, skip_line_feeds: false, pending: String::new() }
    }

    /// Whether the text ends within reasoning; `None` while undecided.
    pub fn is_inside(&self) -> Option<bool> {
        match self.state {
            State::Start { inside: true } | State::Inside => Some(true),
            State::Start { inside: false } => None,
            State::Outside => Some(false),
        }
    }

    /// The leading whitespace of the reply including `text`, while reasoning may still follow.
    pub(crate) fn leading_whitespace(&self, text: &str) -> Option<String> {
        if self.state != (State::Start { inside: false }) {
            return None;
        }
        let start = [&self.pending, text].concat();
        let length = start.len() - start.trim_start().len();
        Some(start[..length].to_owned())
    }

    /// Treats everything from the pending text on as content.
    pub(crate) fn end(&mut self) {
        self.state = State::Outside;
    }

    /// Appends text and returns the new deltas, none of them empty.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while let Some(delta) = self.step() {
            deltas.extend(delta);
        }
        deltas
    }

    /// Returns the pending text at the end of the reply.
    pub fn finish(&mut self) -> Vec<Delta> {
        let rest = std::mem::take(&mut self.pending);
        let delta = match self.state {
            State::Start { inside: true } => Delta::Reasoning(rest.trim_start_matches('\n').to_owned()),
            State::Inside => Delta::Reasoning(rest),
            State::Start { inside: false } | State::Outside => Delta::Content(rest),
        };
        non_empty(delta).into_iter().collect()
    }

    /// Consumes part of the pending text: `None` if more text is needed, else a delta if there is
    /// one.
    fn step(&mut self) -> Option<Option<Delta>> {
        if self.skip_line_feeds {
            let line_feeds = self.pending.len() - self.pending.trim_start_matches('\n').len();
            self.pending.drain(..line_feeds);
            self.skip_line_feeds = self.pending.is_empty();
        }
        if self.pending.is_empty() {
            return None;
        }
        match self.state {
            State::Start { inside } => self.start(inside),
            State::Inside => self.inside(),
            State::Outside => Some(Some(Delta::Content(std::mem::take(&mut self.pending)))),
        }
    }

    fn start(&mut self, inside: bool) -> Option<Option<Delta>> {
        let text = self.pending.trim_start();
        if let Some(rest) = text.strip_prefix(&self.markers.open) {
            self.pending = rest.to_owned();
            self.state = State::Inside;
        } else if self.markers.open.starts_with(text) {
            return None;
        } else {
            self.state = if inside { State::Inside } else { State::Outside };
        }
        self.skip_line_feeds = self.state == State::Inside;
        Some(None)
    }

    fn inside(&mut self) -> Option<Option<Delta>> {
        if let Some(at) = self.pending.find(&self.markers.close) {
            let rest = self.pending.split_off(at + self.markers.close.len());
            self.pending.truncate(at);
            let reasoning = std::mem::replace(&mut self.pending, rest);
            self.state = State::Outside;
            self.skip_line_feeds = true;
            return Some(non_empty(Delta::Reasoning(reasoning.trim_end_matches('\n').to_owned())));
        }
        // A possible start of the closing marker and line feeds before it stay pending.
        let certain = &self.pending[..self.pending.len() - overlap(&self.pending, &self.markers.close)];
        let certain = certain.trim_end_matches('\n').len();
        let reasoning: String = self.pending.drain(..certain).collect();
        if reasoning.is_empty() { None } else { Some(Some(Delta::Reasoning(reasoning))) }
    }
}

fn non_empty(delta: Delta) -> Option<Delta> {
    if delta.text().is_empty() { None } else { Some(delta) }
}
