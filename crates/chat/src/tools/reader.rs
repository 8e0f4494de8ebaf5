//! Text that arrives in pieces, read by straight-line parsers: `async` functions that are suspended
//! until more text is there. Only [`Reader`] and the parser that polls it depend on this.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use super::call_id::CallIds;
use crate::{Delta, stop::overlap};

/// The text is not a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

pub(super) type Result<T> = std::result::Result<T, Malformed>;

/// State shared by a parser and its reader.
#[derive(Debug)]
pub(super) struct Tape {
    /// Text that is not yet read.
    pub text: String,
    /// Text read since the last complete call.
    pub read: String,
    /// Whether no more text will come.
    pub ended: bool,
    /// Deltas of the current call, or of complete calls, in order.
    pub deltas: Vec<Delta>,
    /// Calls begun, and how many of them are complete.
    pub begun: usize,
    pub complete: usize,
    pub ids: CallIds,
    /// Whether the last delta is reasoning.
    pub in_reasoning: bool,
}

impl Tape {
    /// Whether a delta is not part of an incomplete call.
    pub(super) fn is_certain(&self, delta: &Delta) -> bool {
        match delta {
            Delta::ToolCall { index, .. } | Delta::ToolArguments { index, .. } => *index < self.complete,
            Delta::Content(_) | Delta::Reasoning(_) => true,
        }
    }
}

/// A cursor in text that arrives in pieces.
#[derive(Debug, Clone)]
pub(super) struct Reader(Arc<Mutex<Tape>>);

impl Reader {
    pub(super) fn new(ids: CallIds) -> Self {
        let tape = Tape {
            text: String::new(),
            read: String::new(),
            ended: false,
            deltas: Vec::new(),
            begun: 0,
            complete: 0,
            ids,
            in_reasoning: false,
        };
        Self(Arc::new(Mutex::new(tape)))
    }

    pub(super) fn tape(&self) -> MutexGuard<'_, Tape> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `decide` has an answer; it sees the unread text and whether that is all.
    async fn decide<T>(&self, mut decide: impl FnMut(&str, bool) -> Option<T>) -> T {
        poll_fn(|_| {
            let tape = self.tape();
            decide(&tape.text, tape.ended).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Takes the next `length` bytes.
    pub(super) fn take(&self, length: usize) -> String {
        let mut tape = self.tape();
        let taken: String = tape.text.drain(..length).collect();
        tape.read.push_str(&taken);
        taken
    }

    /// Waits for at least one byte; false at the end of the text.
    pub(super) async fn more(&self) -> bool {
        self.decide(|text, ended| (!text.is_empty() || ended).then_some(!text.is_empty())).await
    }

    /// Returns the unread text, at least one character, without taking it.
    pub(super) async fn some(&self) -> Result<String> {
        match self.more().await {
            true => Ok(self.tape().text.clone()),
            false => Err(Malformed),
        }
    }

    /// Whether the text continues with `literal`, which stays unread.
    pub(super) async fn sees(&self, literal: &str) -> bool {
        self.decide(|text, ended| match text.starts_with(literal) {
            true => Some(true),
            false if literal.starts_with(text) && !ended => None,
            false => Some(false),
        })
        .await
    }

    /// Takes `literal` if the text continues with it.
    pub(super) async fn accept(&self, literal: &str) -> bool {
        let seen = self.sees(literal).await;
        if seen {
            self.take(literal.len());
        }
        seen
    }

    /// Takes `literal`.
    pub(super) async fn expect(&self, literal: &str) -> Result<()> {
        if self.accept(literal).await { Ok(()) } else { Err(Malformed) }
    }

    /// Skips whitespace.
    pub(super) async fn spaces(&self) {
        while self.more().await {
            let spaces = {
                let tape = self.tape();
                tape.text.len() - tape.text.trim_start().len()
            };
            let all = spaces == self.tape().text.len();
            self.take(spaces);
            if !all {
                return;
            }
        }
    }

    /// Takes the text before the first of `markers`, which stays unread.
    pub(super) async fn until(&self, markers: &[&str]) -> Result<String> {
        let mut taken = String::new();
        loop {
            let (text, found) = self.piece_before(markers).await?;
            taken.push_str(&text);
            if found {
                return Ok(taken);
            }
        }
    }

    /// Takes a piece of the text before the first of `markers`, and whether a marker follows now.
    pub(super) async fn piece_before(&self, markers: &[&str]) -> Result<(String, bool)> {
        let piece = self.decide(|text, ended| {
            let found = markers.iter().filter_map(|marker| text.find(marker)).min();
            let held = || markers.iter().map(|marker| overlap(text, marker)).max().unwrap_or(0);
            match found {
                Some(at) => Some(Ok((at, true))),
                None if ended => Some(Err(Malformed)),
                None => {
                    Some(text.len() - held()).filter(|&length| length > 0).map(|length| Ok((length, false)))
                }
            }
        });
        let (length, found) = piece.await?;
        Ok((self.take(length), found))
    }

    /// Takes a piece of the text before the first of `markers`, and whether a marker or the end of
    /// the text follows now; `None` at the end.
    pub(super) async fn piece_until(&self, markers: &[&str]) -> Option<(String, bool)> {
        if !self.more().await {
            return None;
        }
        match self.piece_before(markers).await {
            Ok(piece) => Some(piece),
            Err(Malformed) => {
                let length = self.tape().text.len();
                Some((self.take(length), true))
            }
        }
    }

    /// Adds a delta that is not part of a call.
    pub(super) fn delta(&self, delta: Delta) {
        let mut tape = self.tape();
        tape.read.clear();
        tape.in_reasoning = matches!(delta, Delta::Reasoning(_));
        if !delta.text().is_empty() {
            tape.deltas.push(delta);
        }
    }

    /// Begins a call; its id is generated if the model wrote none.
    pub(super) fn begin(&self, name: &str, id: Option<String>) {
        let mut tape = self.tape();
        let id = id.unwrap_or_else(|| tape.ids.next());
        tape.in_reasoning = false;
        let index = tape.begun;
        tape.begun += 1;
        tape.deltas.push(Delta::ToolCall { index, id, name: name.to_owned() });
    }

    /// Adds to the arguments of the call that was begun last.
    pub(super) fn arguments(&self, text: &str) {
        let mut tape = self.tape();
        let at = tape.begun.saturating_sub(1);
        match tape.deltas.last_mut() {
            Some(Delta::ToolArguments { index, arguments }) if *index == at => arguments.push_str(text),
            _ if text.is_empty() => {}
            _ => tape.deltas.push(Delta::ToolArguments { index: at, arguments: text.to_owned() }),
        }
    }

    /// Completes the call that was begun last.
    pub(super) fn end(&self) {
        let mut tape = self.tape();
        tape.complete = tape.begun;
        tape.read.clear();
    }
}
