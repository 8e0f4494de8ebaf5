//! Separates tool calls from content, independently of how the text is chunked.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{
    Dialect, ToolSet,
    call_id::CallIds,
    reader::{Malformed, Reader, Tape},
    syntax::CallReading,
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
    triggers: Vec<String>,
    stream: bool,
    reader: Reader,
    /// The call being read.
    call: Option<CallReading>,
    /// Whether the last output was a call, so that whitespace may lead to the next one.
    after_call: bool,
}

impl ToolParser {
    /// With `stream`, arguments are passed on before their call is complete: for replies that a
    /// grammar keeps valid.
    pub(crate) fn new(dialect: Dialect, tools: Arc<ToolSet>, id_seed: u64, stream: bool) -> Self {
        let syntax = dialect.syntax();
        let reader = Reader::new(CallIds::new(id_seed, syntax.id));
        let triggers = (syntax.triggers)(&tools);
        let mut parser = Self { dialect, tools, triggers, stream, reader, call: None, after_call: false };
        if dialect.is_whole_reply() {
            parser.begin();
        }
        parser
    }

    /// Appends text and returns the new deltas.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Delta> {
        self.reader.tape().text.push_str(text);
        self.run()
    }

    /// Returns the pending text at the end.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        self.reader.tape().ended = true;
        self.run()
    }

    /// Number of complete calls.
    pub(crate) fn complete_calls(&self) -> usize {
        self.reader.tape().complete
    }

    /// Whether the text so far ends in reasoning; `None` if the dialect has none of its own.
    pub(crate) fn in_reasoning(&self) -> Option<bool> {
        self.dialect.is_whole_reply().then(|| self.reader.tape().in_reasoning)
    }

    /// Whitespace that is content unless a call follows.
    pub(crate) fn pending_whitespace(&self) -> String {
        let tape = self.reader.tape();
        let pending = if self.call.is_none() && !self.after_call { &*tape.text } else { "" };
        pending[..pending.len() - pending.trim_start().len()].to_owned()
    }

    fn begin(&mut self) {
        let read = self.dialect.syntax().read;
        self.call = Some(read(self.reader.clone(), self.tools.clone()));
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
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            self.release(&mut deltas);
            match polled {
                Poll::Pending => return deltas,
                Poll::Ready(Ok(())) => (self.call, self.after_call) = (None, true),
                Poll::Ready(Err(Malformed)) => self.give_up(&mut deltas),
            }
        }
    }

    /// Emits the deltas that are certain.
    fn release(&self, deltas: &mut Vec<Delta>) {
        let tape = &mut *self.reader.tape();
        let certain = match self.stream || tape.begun == tape.complete {
            true => tape.deltas.len(),
            false => tape.deltas.iter().take_while(|delta| tape.is_certain(delta)).count(),
        };
        deltas.extend(tape.deltas.drain(..certain));
    }

    /// Emits the text read since the last complete call as content.
    fn give_up(&mut self, deltas: &mut Vec<Delta>) {
        (self.call, self.after_call) = (None, false);
        let mut tape = self.reader.tape();
        tape.deltas.clear();
        let mut text = std::mem::take(&mut tape.read);
        // The streamed part is a call that remains incomplete.
        if self.stream && tape.begun > tape.complete {
            text.clear();
        }
        if !self.stream {
            tape.begun = tape.complete;
        }
        let restarts = self.dialect.is_whole_reply() && !tape.ended;
        if self.dialect.is_whole_reply() && tape.ended {
            text += &std::mem::take(&mut tape.text);
        }
        drop(tape);
        if !text.is_empty() {
            deltas.push(Delta::Content(text));
        }
        if restarts {
            self.begin();
        }
    }

    /// Emits content up to the next call; returns whether one begins.
    fn content(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let tape = &mut *self.reader.tape();
        let found = self.triggers.iter().filter_map(|trigger| tape.text.find(trigger)).min();
        let end = found.unwrap_or_else(|| certain(tape, &self.triggers));
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
            tape.read = tape.text.drain(..spaces).collect();
            let read = self.dialect.syntax().read;
            self.call = Some(read(self.reader.clone(), self.tools.clone()));
        }
        found.is_some()
    }
}

/// The length of the text that cannot be part of a trigger.
fn certain(tape: &Tape, triggers: &[String]) -> usize {
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
