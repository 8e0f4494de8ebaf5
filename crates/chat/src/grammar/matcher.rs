//! Follows one answer through a grammar, token by token; tokens can be removed again.

use llguidance::toktrie::TokenizerEnv;

use super::{
    Grammar, Mask,
    compile::failed,
    watch::{Found, MAX_LINE_FEEDS, Watch},
};
use crate::{Error, Result};

/// The state of one answer. An error stays: every later call returns it again.
pub struct Matcher {
    grammar: Grammar,
    parser: llguidance::Matcher,
    state: State,
    /// The state before each token.
    past: Vec<Past>,
    error: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct State {
    phase: Phase,
    /// The end of the free text that may be the start of a trigger or marker.
    tail: Vec<u8>,
}

struct Past {
    state: State,
    /// Tokens that the parser consumed for this one.
    parsed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing but whitespace; reasoning may open.
    Undecided,
    Reasoning,
    /// The grammar begins with the next text; this many line feeds have been skipped.
    AfterReasoning(usize),
    /// Free content in which a trigger may come.
    Watching,
    Following,
}

impl Matcher {
    pub(super) fn new(grammar: Grammar) -> Matcher {
        let start = &grammar.0.start;
        let phase = match &start.reasoning {
            Some(reasoning) if reasoning.inside => Phase::Reasoning,
            Some(_) => Phase::Undecided,
            None if start.triggers.is_empty() => Phase::Following,
            None => Phase::Watching,
        };
        let parser = grammar.0.parser();
        Matcher { grammar, parser, state: State { phase, tail: vec![] }, past: vec![], error: None }
    }

    /// Appends a token; `false`, and nothing changes, if it is not allowed.
    ///
    /// # Errors
    /// The grammar took too much work.
    pub fn push(&mut self, token: u32) -> Result<bool> {
        self.guarded(|matcher| matcher.try_push(token))
    }

    /// Removes the last `tokens` tokens.
    ///
    /// # Errors
    /// There are fewer.
    pub fn rewind(&mut self, tokens: usize) -> Result<()> {
        self.guarded(|matcher| {
            let Some(at) = matcher.past.len().checked_sub(tokens) else {
                return Err(Error::Grammar(format!("{tokens} tokens cannot be removed")));
            };
            let mut removed = matcher.past.drain(at..);
            let Some(first) = removed.next() else { return Ok(()) };
            let parsed = first.parsed + removed.map(|past| past.parsed).sum::<usize>();
            matcher.state = first.state;
            matcher.parser.rollback(parsed).map_err(|error| failed(&error))
        })
    }

    /// The tokens that may come next.
    ///
    /// # Errors
    /// No token can follow, or finding them took too much work.
    pub fn mask(&mut self) -> Result<Mask> {
        self.guarded(Matcher::allowed)
    }

    /// At most `max` tokens that must come next, as far as that is known without the model.
    ///
    /// # Errors
    /// The grammar took too much work.
    pub fn forced(&mut self, max: usize) -> Result<Vec<u32>> {
        self.guarded(|matcher| {
            let eos_ids = &matcher.grammar.0.shared.eos_ids;
            let mut tokens = match (matcher.state.phase, &eos_ids[..]) {
                (Phase::Following, [eos]) if matcher.parser.is_stopped() => vec![*eos],
                (Phase::Following, _) if !matcher.parser.is_stopped() => matcher.parser.compute_ff_tokens(),
                _ => vec![],
            };
            tokens.truncate(max);
            match matcher.parser.get_error() {
                Some(error) => Err(failed(&error)),
                None => Ok(tokens),
            }
        })
    }

    /// The one place where errors become sticky. llguidance turns its own panics into errors.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Matcher) -> Result<T>) -> Result<T> {
        if let Some(error) = &self.error {
            return Err(Error::Grammar(error.clone()));
        }
        work(self).inspect_err(|error| {
            self.error = Some(match error {
                Error::Grammar(message) => message.clone(),
                other => other.to_string(),
            });
        })
    }

    fn try_push(&mut self, token: u32) -> Result<bool> {
        let (before, grammar) = (self.state.clone(), self.grammar.clone());
        let shared = &grammar.0.shared;
        let line_feeds = shared.line_feeds.iter().find(|(id, _)| *id == token).map(|(_, count)| *count);
        let parsed = match (before.phase, line_feeds) {
            (Phase::Undecided, _) => self.open_reasoning(token),
            (Phase::Reasoning, _) => Ok(self.reason(token).then_some(0)),
            (Phase::AfterReasoning(skipped), Some(more)) if skipped + more <= MAX_LINE_FEEDS => {
                self.state.phase = Phase::AfterReasoning(skipped + more);
                Ok(Some(0))
            }
            (Phase::Watching, _) if grammar.0.watches.triggers.is_token(token) => self.begin(&[token]),
            (Phase::Watching, _) => self.watch(shared.visible(token)),
            (Phase::AfterReasoning(_) | Phase::Following, _) => self.begin(&[token]),
        }?;
        let Some(parsed) = parsed else {
            self.state = before;
            return Ok(false);
        };
        self.past.push(Past { state: before, parsed });
        Ok(true)
    }

    /// The first token of an answer that may begin with reasoning.
    fn open_reasoning(&mut self, token: u32) -> Result<Option<usize>> {
        let grammar = self.grammar.clone();
        let Some(reasoning) = &grammar.0.start.reasoning else { return self.begin(&[token]) };
        if grammar.0.watches.open == Some(token) {
            self.state = State { phase: Phase::Reasoning, tail: vec![] };
            return Ok(Some(0));
        }
        if grammar.0.start.triggers.is_empty() {
            return self.begin(&[token]);
        }
        let text = [&self.state.tail, grammar.0.shared.visible(token)].concat();
        let (begun, open) = (text.trim_ascii_start(), reasoning.markers.open.as_bytes());
        if let Some(rest) = begun.strip_prefix(open) {
            self.state = State { phase: Phase::Reasoning, tail: vec![] };
            return Ok(self.reason_text(rest).then_some(0));
        }
        if open.starts_with(begun) {
            self.state.tail = text;
            return Ok(Some(0));
        }
        self.state = State { phase: Phase::Watching, tail: vec![] };
        match grammar.0.watches.triggers.is_token(token) {
            true => self.begin(&[token]),
            false => self.watch(&text),
        }
    }

    /// A token of the reasoning; `false` if it is not allowed.
    fn reason(&mut self, token: u32) -> bool {
        let shared = self.grammar.0.shared.clone();
        let unfinished = self.grammar.0.start.triggers.is_empty();
        !(unfinished && shared.eos_ids.contains(&token)) && self.reason_text(shared.visible(token))
    }

    fn reason_text(&mut self, text: &[u8]) -> bool {
        let text = [&self.state.tail, text].concat();
        let grammar = self.grammar.clone();
        let Some(Found { end, .. }) = grammar.0.watches.close.find(&text) else {
            self.state.tail = grammar.0.watches.close.tail(&text).to_vec();
            return true;
        };
        let rest = &text[end..];
        self.state = match grammar.0.start.triggers.is_empty() {
            true => State { phase: Phase::AfterReasoning(rest.len()), tail: vec![] },
            false => State { phase: Phase::Watching, tail: grammar.0.watches.triggers.tail(rest).to_vec() },
        };
        !grammar.0.start.triggers.is_empty() || is_skipped(rest)
    }

    /// Free content; `None` if a trigger is complete and the text after it does not match.
    fn watch(&mut self, text: &[u8]) -> Result<Option<usize>> {
        let text = [&self.state.tail, text].concat();
        let grammar = self.grammar.clone();
        let triggers: &Watch = &grammar.0.watches.triggers;
        let Some(found) = triggers.find(&text) else {
            self.state.tail = triggers.tail(&text).to_vec();
            return Ok(Some(0));
        };
        self.begin(&grammar.0.shared.spelled(&[triggers.text(found), &text[found.end..]].concat()))
    }

    /// Continues in the grammar.
    fn begin(&mut self, tokens: &[u32]) -> Result<Option<usize>> {
        self.state = State { phase: Phase::Following, tail: vec![] };
        let shared = &self.grammar.0.shared;
        if tokens.iter().any(|token| !shared.exists(*token)) {
            return Ok(None);
        }
        if self.parser.is_stopped() {
            let ends = tokens.iter().all(|token| shared.eos_ids.contains(token));
            return Ok(ends.then_some(0));
        }
        let valid = self.parser.validate_tokens(tokens).map_err(|error| failed(&error))?;
        if valid < tokens.len() {
            return Ok(None);
        }
        self.parser.consume_tokens(tokens).map_err(|error| failed(&error))?;
        Ok(Some(tokens.len()))
    }

    fn allowed(&mut self) -> Result<Mask> {
        let grammar = self.grammar.clone();
        let (shared, watches) = (&grammar.0.shared, &grammar.0.watches);
        let at_once = grammar.0.start.triggers.is_empty();
        match self.state.phase {
            Phase::Following => self.parser_mask(&[]),
            Phase::Undecided if at_once => self.parser_mask(watches.open.as_slice()),
            Phase::AfterReasoning(skipped) => {
                let fits = |(_, count): &&(u32, usize)| skipped + count <= MAX_LINE_FEEDS;
                let ids: Vec<u32> = shared.line_feeds.iter().filter(fits).map(|(id, _)| *id).collect();
                self.parser_mask(&ids)
            }
            Phase::Reasoning if at_once => {
                let mask =
                    watches.close.mask(&self.state.tail, shared, &shared.eos_ids, |_, rest| is_skipped(rest));
                Ok(mask)
            }
            Phase::Reasoning => Ok(None),
            Phase::Undecided | Phase::Watching => {
                let parser = &mut self.parser;
                let accepts = |text: &[u8], rest: &[u8]| {
                    let tokens = shared.spelled(&[text, rest].concat());
                    parser.validate_tokens(&tokens).is_ok_and(|valid| valid == tokens.len())
                };
                Ok(watches.triggers.mask(&self.state.tail, shared, &[], accepts))
            }
        }
    }

    /// The grammar's mask plus the tokens `also`.
    fn parser_mask(&mut self, also: &[u32]) -> Result<Mask> {
        let mask = self.parser.compute_mask_or_eos().map_err(|error| failed(&error))?;
        let vocab_size = mask.len();
        let mut words = mask.as_slice()[..vocab_size.div_ceil(32)].to_vec();
        if let (Some(last), used @ 1..) = (words.last_mut(), vocab_size % 32) {
            *last &= u32::MAX >> (32 - used);
        }
        also.iter().for_each(|&id| words[id as usize / 32] |= 1 << (id % 32));
        Ok(Some(words.into()))
    }
}

/// Whether text after the reasoning is not part of the content.
fn is_skipped(text: &[u8]) -> bool {
    text.len() <= MAX_LINE_FEEDS && text.iter().all(|byte| *byte == b'\n')
}

impl super::compile::Shared {
    fn exists(&self, token: u32) -> bool {
        (token as usize) < self.env.tok_trie().vocab_size()
    }

    /// Tokens that spell a text.
    fn spelled(&self, text: &[u8]) -> Vec<u32> {
        self.env.tokenize_bytes(text)
    }
}
