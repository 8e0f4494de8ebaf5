//! Token ids in, deltas of a reply out: what streamed and whole answers are both made of.

use std::sync::Arc;

use crate::{Delta, Detokenizer, Markers, Reasoning, Result, StopStrings, Tokenizer};

/// How a reply is decoded.
#[derive(Debug, Clone)]
pub struct DecodeOptions {
    /// Control tokens give no text; markers of reasoning are seen even so.
    pub skip_special_tokens: bool,
    /// Texts that end the content, and are not part of it.
    pub stop: Vec<String>,
    /// The markers of reasoning; `None` when the model has none and everything is content.
    pub reasoning: Option<Markers>,
    /// Whether the prompt already opened the reasoning: see [`crate::starts_in_reasoning`].
    pub starts_in_reasoning: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { skip_special_tokens: true, stop: Vec::new(), reasoning: None, starts_in_reasoning: false }
    }
}

/// Decodes one reply.
///
/// Stop strings apply to content only: a stop such as a blank line must not end the model's reasoning. White space at the
/// very start counts as content for them, or a model that writes nothing else would never be stopped.
#[derive(Debug)]
pub struct Decoder {
    detokenizer: Detokenizer,
    reasoning: Option<Reasoning>,
    stop: StopStrings,
    reasoning_tokens: usize,
    /// Tokens pushed while it is open whether they belong to reasoning.
    undecided_tokens: usize,
}

impl Decoder {
    /// A decoder at the start of a reply. Fails on an empty stop string.
    pub fn new(tokenizer: Arc<Tokenizer>, options: DecodeOptions) -> Result<Self> {
        let stop = StopStrings::new(options.stop)?;
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), options.skip_special_tokens);
        for marker in options.reasoning.iter().flat_map(|m| [&m.open, &m.close]) {
            tokenizer.token_to_id(marker).into_iter().for_each(|id| detokenizer.keep(id));
        }
        let reasoning = options.reasoning.map(|m| Reasoning::new(m, options.starts_in_reasoning));
        Ok(Self { detokenizer, reasoning, stop, reasoning_tokens: 0, undecided_tokens: 0 })
    }

    /// What is certain now that `id` is known; nothing once a stop string was met.
    pub fn push(&mut self, id: u32) -> Vec<Delta> {
        if self.stopped().is_some() {
            return Vec::new();
        }
        let was_inside = self.is_inside();
        let text = self.detokenizer.push(id);
        self.end_start(&text);
        let deltas = self.split(&text);
        self.count(was_inside);
        self.stop_content(deltas)
    }

    /// The text held back, now that no more will come.
    pub fn finish(&mut self) -> Vec<Delta> {
        if self.stopped().is_some() {
            return Vec::new();
        }
        let text = self.detokenizer.finish();
        self.end_start(&text);
        let mut deltas = self.split(&text);
        deltas.extend(self.reasoning.as_mut().map(Reasoning::finish).into_iter().flatten());
        let mut deltas = self.stop_content(deltas);
        let held = self.stop.finish();
        if !held.is_empty() {
            deltas.push(Delta::Content(held));
        }
        deltas
    }

    /// The stop string that ended the reply, if one did: the caller should stop generating.
    pub fn stopped(&self) -> Option<&str> {
        self.stop.matched()
    }

    /// How many of the tokens pushed were reasoning, those of its markers included.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    fn is_inside(&self) -> Option<bool> {
        self.reasoning.as_ref().map_or(Some(false), Reasoning::is_inside)
    }

    fn count(&mut self, was_inside: Option<bool>) {
        self.undecided_tokens += 1;
        let inside = self.is_inside();
        if was_inside == Some(true) || inside == Some(true) {
            self.reasoning_tokens += self.undecided_tokens;
        }
        if inside.is_some() {
            self.undecided_tokens = 0;
        }
    }

    /// A stop string in the white space that a reply begins with ends it there, whether or not reasoning might follow.
    fn end_start(&mut self, text: &str) {
        let Some(reasoning) = &mut self.reasoning else { return };
        if reasoning.start_with(text).is_some_and(|white_space| self.stop.is_in(&white_space)) {
            reasoning.give_up();
        }
    }

    fn split(&mut self, text: &str) -> Vec<Delta> {
        match &mut self.reasoning {
            Some(reasoning) => reasoning.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Content(text.to_owned())],
        }
    }

    fn stop_content(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        let stopped = deltas.into_iter().map(|delta| match delta {
            Delta::Content(text) => Delta::Content(self.stop.push(&text)),
            reasoning => reasoning,
        });
        stopped.filter(|delta| *delta != Delta::Content(String::new())).collect()
    }
}
