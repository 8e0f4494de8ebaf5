//! Splits a reply into reasoning and content by markers such as `<think>`. Works on text; knows nothing of tokens.

use crate::stop::overlap;

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// What the model thinks: `reasoning_content`.
    Reasoning(String),
    /// What the model answers: `content`.
    Content(String),
}

/// The texts around a model's reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Markers {
    /// Before the reasoning, such as `<think>`.
    pub open: String,
    /// After it, such as `</think>`.
    pub close: String,
}

/// The markers in use, by family: most; Magistral; Kimi-VL; Seed-OSS.
const KNOWN: [(&str, &str); 4] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
];

impl Markers {
    /// The markers a chat template's source mentions, if it mentions any.
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

/// Whether a prompt ends inside the reasoning, that is with the opening marker (and white space).
///
/// Only the end counts: a user may write `<think>` in a question without turning the whole answer into reasoning.
pub fn starts_in_reasoning(prompt: &str, markers: &Markers) -> bool {
    prompt.trim_end().ends_with(&markers.open)
}

/// Separates reasoning from content, however the text is cut into pieces.
///
/// - Reasoning is one block at the start of the reply. A marker after the first word of content is content.
/// - The opening marker is optional when the prompt already ended with it.
/// - Without a closing marker, everything is reasoning.
/// - Dropped: the markers; white space before the opening one; line feeds right after it, right before the closing one
///   and right after that. Every other character is kept, in order.
#[derive(Debug)]
pub struct Reasoning {
    markers: Markers,
    state: State,
    /// Line feeds here belong to a marker.
    skip_line_feeds: bool,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Nothing but white space so far.
    Start {
        inside: bool,
    },
    Inside,
    Outside,
}

impl Reasoning {
    /// A splitter at the start of a reply; `inside` when the prompt already opened the reasoning.
    pub fn new(markers: Markers, inside: bool) -> Self {
        Self { markers, state: State::Start { inside }, skip_line_feeds: false, held: String::new() }
    }

    /// Whether the text so far ends in reasoning; `None` while that is open.
    pub fn is_inside(&self) -> Option<bool> {
        match self.state {
            State::Start { inside: true } | State::Inside => Some(true),
            State::Start { inside: false } => None,
            State::Outside => Some(false),
        }
    }

    /// The white space that the reply begins with if `text` is what comes next, while reasoning may still follow it.
    pub(crate) fn start_with(&self, text: &str) -> Option<String> {
        if self.state != (State::Start { inside: false }) {
            return None;
        }
        let start = [&self.held, text].concat();
        let length = start.len() - start.trim_start().len();
        Some(start[..length].to_owned())
    }

    /// Whatever comes is content, as is what was held back.
    pub(crate) fn give_up(&mut self) {
        self.state = State::Outside;
    }

    /// The pieces that are certain; none is empty.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut deltas = Vec::new();
        while let Some(delta) = self.step() {
            deltas.extend(delta);
        }
        deltas
    }

    /// The text held back, now that no more will come.
    pub fn finish(&mut self) -> Vec<Delta> {
        let rest = std::mem::take(&mut self.held);
        let delta = match self.state {
            State::Start { inside: true } => Delta::Reasoning(rest.trim_start_matches('\n').to_owned()),
            State::Inside => Delta::Reasoning(rest),
            State::Start { inside: false } | State::Outside => Delta::Content(rest),
        };
        non_empty(delta).into_iter().collect()
    }

    /// One step on the held text: `None` when more text is needed, else perhaps a piece.
    fn step(&mut self) -> Option<Option<Delta>> {
        if self.skip_line_feeds {
            let line_feeds = self.held.len() - self.held.trim_start_matches('\n').len();
            self.held.drain(..line_feeds);
            self.skip_line_feeds = self.held.is_empty();
        }
        if self.held.is_empty() {
            return None;
        }
        match self.state {
            State::Start { inside } => self.start(inside),
            State::Inside => self.inside(),
            State::Outside => Some(Some(Delta::Content(std::mem::take(&mut self.held)))),
        }
    }

    fn start(&mut self, inside: bool) -> Option<Option<Delta>> {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(&self.markers.open) {
            self.held = rest.to_owned();
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
        if let Some(at) = self.held.find(&self.markers.close) {
            let rest = self.held.split_off(at + self.markers.close.len());
            self.held.truncate(at);
            let reasoning = std::mem::replace(&mut self.held, rest);
            self.state = State::Outside;
            self.skip_line_feeds = true;
            return Some(non_empty(Delta::Reasoning(reasoning.trim_end_matches('\n').to_owned())));
        }
        // The start of a closing marker, and the line feeds before it, wait for what comes.
        let certain = &self.held[..self.held.len() - overlap(&self.held, &self.markers.close)];
        let certain = certain.trim_end_matches('\n').len();
        let reasoning: String = self.held.drain(..certain).collect();
        if reasoning.is_empty() { None } else { Some(Some(Delta::Reasoning(reasoning))) }
    }
}

fn non_empty(delta: Delta) -> Option<Delta> {
    let (Delta::Reasoning(text) | Delta::Content(text)) = &delta;
    if text.is_empty() { None } else { Some(delta) }
}
