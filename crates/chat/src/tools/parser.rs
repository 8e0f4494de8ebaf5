//! Separates tool calls from content, independently of how the text is chunked.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{
    Dialect, ToolSet,
    call_id::CallIds,
    dialect::CallReading,
    reader::{Reader, Result, Tape},
};
use crate::{Delta, stop::overlap};

/// Turns content into content and tool calls.
///
/// - Text that is not a valid call of a known tool stays content, markers included; so does a call
///   that the text's end cuts off.
/// - Whitespace around calls is dropped: templates write it again.
pub(crate) struct ToolParser {
    dialect: Dialect,
    tools: Arc<ToolSet>,
    reader: Reader,
    /// The call being read.
    call: Option<CallReading>,
    /// Whether the last thing was a call, so that whitespace may lead to the next one.
    after_call: bool,
}

impl ToolParser {
    pub fn new(dialect: Dialect, tools: Arc<ToolSet>, id_seed: u64) -> Self {
        let reader = Reader::new(CallIds::new(id_seed));
        Self { dialect, tools, reader, call: None, after_call: false }
    }

    /// Appends text and returns the new deltas.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.reader.tape().text.push_str(text);
        self.run()
    }

    /// Returns the pending text at the end.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.reader.tape().ended = true;
        self.run()
    }

    /// Number of complete calls.
    pub fn complete_calls(&self) -> usize {
        self.reader.tape().complete
    }

    /// Whitespace that is content unless a call follows.
    pub fn pending_whitespace(&self) -> String {
        let tape = self.reader.tape();
        let pending = if self.call.is_none() && !self.after_call { &*tape.text } else { "" };
        pending[..pending.len() - pending.trim_start().len()].to_owned()
    }

    fn run(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        loop {
            let Some(call) = &mut self.call else {
                match self.content(&mut deltas) {
                    true => continue,
                    false => return deltas,
                }
            };
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return deltas,
                Poll::Ready(result) => self.end_call(result, &mut deltas),
            }
        }
    }

    fn end_call(&mut self, result: Result<()>, deltas: &mut Vec<Delta>) {
        self.call = None;
        let tape = &mut *self.reader.tape();
        let complete = tape.complete;
        let of_complete = |delta: &Delta| match delta {
            Delta::ToolCall { index, .. } | Delta::ToolArguments { index, .. } => *index < complete,
            Delta::Content(_) | Delta::Reasoning(_) => true,
        };
        deltas.extend(std::mem::take(&mut tape.deltas).into_iter().filter(of_complete));
        tape.begun = complete;
        let read = std::mem::take(&mut tape.read);
        self.after_call = result.is_ok();
        if result.is_err() {
            deltas.push(Delta::Content(read));
        }
    }

    /// Emits content up to the next call; whether one begins.
    fn content(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let tape = &mut *self.reader.tape();
        let triggers = self.dialect.triggers();
        let found = triggers.iter().filter_map(|trigger| tape.text.find(trigger)).min();
        let end = found.unwrap_or_else(|| certain(tape, triggers));
        let content = tape.text[..end].trim_end();
        let content =
            if tape.ended && found.is_none() && !self.after_call { &tape.text[..] } else { content };
        if !content.is_empty() {
            let length = content.len();
            deltas.push(Delta::Content(tape.text.drain(..length).collect()));
            self.after_call = false;
        }
        if found.is_some() {
            let spaces = tape.text.len() - tape.text.trim_start().len();
            let spaces: String = tape.text.drain(..spaces).collect();
            tape.read = spaces;
            self.call = Some(self.dialect.read(self.reader.clone(), self.tools.clone()));
        }
        found.is_some()
    }
}

/// The length of the text that cannot be part of a trigger.
fn certain(tape: &Tape, triggers: &[&str]) -> usize {
    let held = || triggers.iter().map(|trigger| overlap(&tape.text, trigger)).max().unwrap_or(0);
    tape.text.len() - if tape.ended { 0 } else { held() }
}

impl fmt::Debug for ToolParser {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ToolParser")
            .field("dialect", &self.dialect)
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}
