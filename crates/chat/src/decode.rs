//! Decodes token ids into deltas of reasoning, content and tool calls, for streaming and complete
//! answers.

use std::sync::Arc;

use crate::{
    Delta, Detokenizer, Markers, Reasoning, Repetition, Result, StopStrings, Tokenizer,
    thinking::{ThinkingLimit, ThinkingTracker},
    tools::{Dialect, ToolParser, ToolSet},
};

/// How a reply is decoded.
#[derive(Debug, Clone)]
pub struct DecodeOptions {
    /// Whether special tokens yield no text; reasoning markers are recognized anyway.
    pub skip_special_tokens: bool,
    /// Stop strings; they end the content and are not part of it.
    pub stop: Vec<String>,
    /// Reasoning markers; `None` if the model has none and everything is content.
    pub reasoning: Option<Markers>,
    /// Whether the prompt already opened the reasoning: see [`crate::starts_in_reasoning`].
    pub starts_in_reasoning: bool,
    /// Tool calls to recognize; `None` if the request has no tools.
    pub tools: Option<ToolOptions>,
    /// The limit on the reasoning; `None`: it has none.
    pub thinking: Option<Arc<ThinkingLimit>>,
    /// Most tokens of the answer, without its reasoning.
    pub max_answer_tokens: Option<usize>,
    /// Whether an answer that repeats itself ends.
    pub stop_repetition: bool,
}

/// How tool calls are recognized.
#[derive(Debug, Clone)]
pub struct ToolOptions {
    /// The model's syntax.
    pub dialect: Dialect,
    /// The tools that may be called.
    pub tools: Arc<ToolSet>,
    /// Seed of the call ids; every reply needs its own.
    pub id_seed: u64,
    /// Whether a grammar keeps calls valid, so that arguments are passed on as they arrive.
    pub stream: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            skip_special_tokens: true,
            stop: Vec::new(),
            reasoning: None,
            starts_in_reasoning: false,
            tools: None,
            thinking: None,
            max_answer_tokens: None,
            stop_repetition: false,
        }
    }
}

/// A limit that ends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerLimit {
    /// It has as many tokens as it may have.
    Tokens,
    /// It repeated itself.
    Repetition,
}

/// Decodes one reply.
///
/// Stop strings apply to content only: a blank line must not end the model's reasoning. Leading
/// whitespace counts as content, or a model that writes nothing else would never stop. A call
/// within reasoning is reasoning.
#[derive(Debug)]
pub struct Decoder {
    detokenizer: Detokenizer,
    reasoning: Option<Reasoning>,
    tools: Option<ToolParser>,
    stop: StopStrings,
    reasoning_tokens: usize,
    /// Tokens that may still turn out to be reasoning.
    undecided_tokens: usize,
    answer_tokens: usize,
    max_answer_tokens: Option<usize>,
    thinking: Option<ThinkingTracker>,
    /// Of the answer; `None`: it may repeat itself.
    repetition: Option<Repetition>,
}

impl Decoder {
    /// A decoder at the start of a reply.
    ///
    /// # Errors
    /// [`Error::EmptyStop`](crate::Error::EmptyStop).
    pub fn new(tokenizer: Arc<Tokenizer>, options: DecodeOptions) -> Result<Self> {
        let stop = StopStrings::new(options.stop)?;
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), options.skip_special_tokens);
        let of_reasoning = options.reasoning.iter().flat_map(|m| [&*m.open, &*m.close]);
        let of_tools = options.tools.iter().flat_map(|tools| tools.dialect.markers().iter().copied());
        for marker in of_reasoning.chain(of_tools) {
            match tokenizer.token_to_id(marker) {
                Some(id) => detokenizer.keep(id),
                // Gemma 4's marker is a special token and a word.
                None => {
                    let ids = tokenizer.encode(marker, false).unwrap_or_default();
                    ids.into_iter()
                        .filter(|id| tokenizer.is_special(*id))
                        .for_each(|id| detokenizer.keep(id));
                }
            }
        }
        let reasoning = options.reasoning.map(|m| Reasoning::new(m, options.starts_in_reasoning));
        let tools = options.tools.map(|t| ToolParser::new(t.dialect, t.tools, t.id_seed, t.stream));
        Ok(Self {
            detokenizer,
            reasoning,
            tools,
            stop,
            reasoning_tokens: 0,
            undecided_tokens: 0,
            answer_tokens: 0,
            max_answer_tokens: options.max_answer_tokens,
            thinking: options.thinking.as_ref().map(ThinkingLimit::start),
            repetition: options.stop_repetition.then(Repetition::new),
        })
    }

    /// Appends a token and returns the new deltas; none once a stop string matched or a limit was
    /// reached.
    pub fn push(&mut self, id: u32) -> Vec<Delta> {
        if self.stopped().is_some() || self.limited().is_some() {
            return Vec::new();
        }
        if let Some(thinking) = &mut self.thinking {
            thinking.push(id);
        }
        let was_inside = self.is_inside();
        let text = self.detokenizer.push(id);
        self.stop_in_leading_whitespace(&text);
        let deltas = self.split(&text);
        let deltas = self.parse_calls(deltas);
        self.count(was_inside, id);
        self.stop_content(deltas)
    }

    /// Returns the pending text at the end of the reply.
    pub fn finish(&mut self) -> Vec<Delta> {
        if self.stopped().is_some() {
            return Vec::new();
        }
        let text = self.detokenizer.finish();
        self.stop_in_leading_whitespace(&text);
        let mut deltas = self.split(&text);
        deltas.extend(self.reasoning.as_mut().map(Reasoning::finish).into_iter().flatten());
        let mut deltas = self.parse_calls(deltas);
        deltas.extend(self.tools.as_mut().map(ToolParser::finish).into_iter().flatten());
        let mut deltas = self.stop_content(deltas);
        let pending = self.stop.finish();
        if !pending.is_empty() {
            deltas.push(Delta::Content(pending));
        }
        deltas
    }

    /// The stop string that ended the reply; the caller should stop generating.
    pub fn stopped(&self) -> Option<&str> {
        self.stop.matched()
    }

    /// The limit that ended the answer; the caller should stop generating.
    pub fn limited(&self) -> Option<AnswerLimit> {
        if self.repetition.as_ref().is_some_and(Repetition::detected) {
            return Some(AnswerLimit::Repetition);
        }
        self.max_answer_tokens.filter(|most| self.answer_tokens >= *most).map(|_| AnswerLimit::Tokens)
    }

    /// The thinking so far, if it is limited.
    pub fn thinking(&self) -> Option<&ThinkingTracker> {
        self.thinking.as_ref()
    }

    /// Number of complete tool calls.
    pub fn tool_calls(&self) -> usize {
        self.tools.as_ref().map_or(0, ToolParser::complete_calls)
    }

    /// Number of reasoning tokens, markers included.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    fn is_inside(&self) -> Option<bool> {
        let own = self.tools.as_ref().and_then(ToolParser::in_reasoning);
        own.or_else(|| self.reasoning.as_ref().map_or(Some(false), Reasoning::is_inside))
    }

    fn count(&mut self, was_inside: Option<bool>, id: u32) {
        self.undecided_tokens += 1;
        let inside = self.is_inside();
        if was_inside == Some(true) || inside == Some(true) {
            self.reasoning_tokens += self.undecided_tokens;
        } else if inside == Some(false) {
            self.answer_tokens += self.undecided_tokens;
            self.repetition.as_mut().map(|repetition| repetition.push(id));
        }
        if inside.is_some() {
            self.undecided_tokens = 0;
        }
    }

    /// A stop string in the leading whitespace ends the reply, even if reasoning could follow.
    fn stop_in_leading_whitespace(&mut self, text: &str) {
        let Some(reasoning) = &mut self.reasoning else { return };
        if reasoning.leading_whitespace(text).is_some_and(|space| self.stop.is_in(&space)) {
            reasoning.end();
        }
    }

    fn split(&mut self, text: &str) -> Vec<Delta> {
        match &mut self.reasoning {
            Some(reasoning) => reasoning.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Content(text.to_owned())],
        }
    }

    fn parse_calls(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        let Some(tools) = &mut self.tools else { return deltas };
        let mut parsed = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Content(text) => parsed.extend(tools.push(&text)),
                other => parsed.push(other),
            }
        }
        parsed
    }

    /// Ends the content at a stop string; no stop string matches across a tool call.
    fn stop_content(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        let mut output = Vec::new();
        let held = self.tools.as_ref().map(ToolParser::pending_whitespace).unwrap_or_default();
        for delta in deltas {
            match delta {
                _ if self.stop.matched().is_some() => {}
                Delta::Content(text) => output.push(Delta::Content(self.stop.push(&text))),
                Delta::ToolCall { .. } => output.extend([Delta::Content(self.stop.finish()), delta]),
                other => output.push(other),
            }
        }
        if !held.is_empty() && self.stop.would_match(&held) {
            output.push(Delta::Content(self.stop.push(&held)));
        }
        output.retain(|delta| *delta != Delta::Content(String::new()));
        output
    }
}
