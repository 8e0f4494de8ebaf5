//! The limit on one answer's thinking: when it is closed, and the tokens that close it.

use std::{collections::VecDeque, sync::Arc};

use crate::{Markers, Repetition, Result, Tokenizer};

/// Tokens that can be removed again: more than any draft has.
const MAX_REWIND: usize = 256;

/// How an answer's thinking is limited.
#[derive(Clone, Debug)]
pub struct ThinkingOptions {
    /// The strings around it.
    pub markers: Markers,
    /// Whether the prompt already opened it: see [`crate::starts_in_reasoning`].
    pub inside: bool,
    /// Most tokens of thinking.
    pub budget: usize,
    /// Most tokens of thinking with those that close it.
    pub room: usize,
    /// The text that thinking which is cut ends with; empty: none.
    pub transition: String,
    /// The text that closes it, up to where the answer begins.
    pub closing: String,
    /// The tokens that end an answer; within thinking they may not come.
    pub eos_ids: Vec<u32>,
    /// Whether nothing else constrains the answer. Then it has at least one token.
    pub free_answer: bool,
}

/// The limit on the thinking of answers to one prompt.
///
/// Thinking is closed where its budget is spent, or one token after it began to [repeat
/// itself](Repetition). What closes it are tokens that must come next: the transition and the
/// closing marker. They follow from the tokens before them alone. A character that is begun is
/// completed first.
///
/// So what may come next is nearly always known [one token ahead](ThinkingTracker::after_next).
#[derive(Debug)]
pub struct ThinkingLimit {
    tokenizer: Arc<Tokenizer>,
    options: ThinkingOptions,
    closing: Vec<u32>,
}

/// Why thinking was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Its budget was spent.
    Budget,
    /// It repeated itself.
    Repetition,
}

/// The tokens that may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// All.
    Any,
    /// All but those that end an answer.
    NoEnd,
    /// These, in this order.
    Forced(&'a [u32]),
}

/// The thinking of one answer so far.
#[derive(Clone, Debug)]
pub struct ThinkingTracker {
    limit: Arc<ThinkingLimit>,
    state: State,
    /// The state before each of the last tokens.
    past: VecDeque<State>,
    repetition: Repetition,
}

#[derive(Clone, Debug)]
struct State {
    phase: Phase,
    /// The end of the text that may be part of a marker.
    tail: Vec<u8>,
    /// Tokens of thinking.
    tokens: usize,
    cut: Option<Cut>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing but whitespace; thinking may open.
    Start,
    Inside,
    /// This many closing tokens have come.
    Closing(usize),
    /// Thinking has just ended.
    Ended,
    Outside,
}

impl ThinkingLimit {
    /// # Errors
    /// The tokenizer cannot encode the transition.
    pub fn new(tokenizer: Arc<Tokenizer>, mut options: ThinkingOptions) -> Result<Arc<ThinkingLimit>> {
        let transition = options.transition.trim();
        let text = match transition.is_empty() {
            true => options.closing.clone(),
            false => format!("\n\n{transition}{}", options.closing),
        };
        let mut closing = tokenizer.encode(&text, false)?;
        // A sentence is not worth most of a small room.
        if 2 * closing.len() > options.room {
            closing = tokenizer.encode(&options.closing, false)?;
        }
        options.budget = options.budget.min(options.room.saturating_sub(closing.len()));
        Ok(Arc::new(ThinkingLimit { tokenizer, options, closing }))
    }

    /// Most tokens of thinking, those that close it included.
    pub fn max_tokens(&self) -> usize {
        // A begun character takes at most three more, and the marker that opens takes some.
        let open = self.options.markers.open.len();
        self.options.budget.saturating_add(self.closing.len() + open + 3)
    }

    /// Most tokens of thinking before it is closed.
    pub fn budget(&self) -> usize {
        self.options.budget
    }

    /// The thinking of an answer without tokens.
    pub fn start(self: &Arc<ThinkingLimit>) -> ThinkingTracker {
        let phase = if self.options.inside { Phase::Inside } else { Phase::Start };
        let state = State { phase, tail: vec![], tokens: 0, cut: None };
        let (limit, repetition) = (self.clone(), Repetition::new());
        let mut tracker = ThinkingTracker { limit, state, past: VecDeque::new(), repetition };
        tracker.cut_if_spent();
        tracker
    }
}

impl ThinkingTracker {
    /// Appends a token; `false`, and nothing changes, if it may not come next.
    pub fn push(&mut self, token: u32) -> bool {
        match self.next() {
            Next::Forced(forced) if forced.first() != Some(&token) => return false,
            Next::NoEnd if self.limit.options.eos_ids.contains(&token) => return false,
            _ => {}
        }
        if self.past.len() == MAX_REWIND {
            self.past.pop_front();
        }
        self.past.push_back(self.state.clone());
        match self.state.phase {
            Phase::Start => self.open(token),
            Phase::Inside => self.think(token),
            Phase::Closing(come) if come + 1 == self.limit.closing.len() => {
                self.state.phase = Phase::Ended;
            }
            Phase::Closing(come) => self.state.phase = Phase::Closing(come + 1),
            Phase::Ended | Phase::Outside => self.state.phase = Phase::Outside,
        }
        true
    }

    /// Removes the last `tokens` tokens; `false`, and nothing changes, if that are too many.
    pub fn rewind(&mut self, tokens: usize) -> bool {
        let Some(first) = self.past.len().checked_sub(tokens) else { return false };
        let Some(before) = self.past.get(first).cloned() else { return true };
        self.repetition.rewind(self.state.tokens - before.tokens);
        self.state = before;
        self.past.truncate(first);
        true
    }

    /// The tokens that may come next.
    pub fn next(&self) -> Next<'_> {
        match self.state.phase {
            Phase::Closing(come) => Next::Forced(&self.limit.closing[come..]),
            Phase::Inside => Next::NoEnd,
            Phase::Ended => self.first(),
            Phase::Start | Phase::Outside => Next::Any,
        }
    }

    /// The tokens that may come after the next one, if they are the same whatever that is.
    pub fn after_next(&self) -> Option<Next<'_>> {
        let ThinkingOptions { budget, free_answer, .. } = self.limit.options;
        match self.state.phase {
            Phase::Start => None,
            // The token may close the thinking, or begin a character that has to be completed.
            Phase::Inside if self.state.cut.is_some() || self.state.tokens + 1 >= budget => None,
            // The token may close the thinking: then the answer begins with the one after it.
            Phase::Inside => free_answer.then_some(Next::NoEnd),
            Phase::Closing(come) => Some(match &self.limit.closing[come + 1..] {
                [] => self.first(),
                rest => Next::Forced(rest),
            }),
            Phase::Ended | Phase::Outside => Some(Next::Any),
        }
    }

    /// The tokens that may begin the answer after the thinking.
    fn first(&self) -> Next<'_> {
        if self.limit.options.free_answer { Next::NoEnd } else { Next::Any }
    }

    /// Why the thinking was cut; `None`: it was not.
    pub fn cut(&self) -> Option<Cut> {
        self.state.cut
    }

    /// The limit that it follows.
    pub fn limit(&self) -> &ThinkingLimit {
        &self.limit
    }

    /// The first tokens of an answer: whitespace, then the opening marker if it thinks.
    fn open(&mut self, token: u32) {
        self.state.tail.extend(self.limit.tokenizer.token_bytes(token));
        let (limit, text) = (self.limit.clone(), std::mem::take(&mut self.state.tail));
        let (begun, open) = (text.trim_ascii_start(), limit.options.markers.open.as_bytes());
        if let Some(rest) = begun.strip_prefix(open) {
            self.state.phase = Phase::Inside;
            self.read(rest);
            self.cut_if_spent();
        } else if open.starts_with(begun) {
            self.state.tail = text;
        } else {
            self.state.phase = Phase::Outside;
        }
    }

    fn think(&mut self, token: u32) {
        self.state.tokens += 1;
        let repeats = self.repetition.push(token);
        let text = self.limit.tokenizer.token_bytes(token);
        self.read(&text);
        self.cut_if_spent();
        // It is closed after the next token, which may be computed already.
        if repeats && self.state.phase == Phase::Inside {
            self.state.cut = self.state.cut.or(Some(Cut::Repetition));
        }
    }

    /// Looks for the closing marker.
    fn read(&mut self, text: &[u8]) {
        let close = self.limit.options.markers.close.as_bytes();
        let tail = &mut self.state.tail;
        tail.extend(text);
        if tail.windows(close.len()).any(|window| window == close) {
            self.state = State { phase: Phase::Ended, tail: vec![], ..self.state };
        } else {
            tail.drain(..tail.len().saturating_sub(close.len().max(4) - 1));
        }
    }

    /// Begins to close thinking that has to end.
    fn cut_if_spent(&mut self) {
        let state = &mut self.state;
        if state.phase != Phase::Inside {
            // The model closed it itself, with this very token.
            state.cut = state.cut.filter(|_| matches!(state.phase, Phase::Closing(_)));
            return;
        }
        if state.tokens >= self.limit.options.budget {
            state.cut = state.cut.or(Some(Cut::Budget));
        }
        if state.cut.is_some() && !is_inside_character(&state.tail) {
            state.phase = Phase::Closing(0);
        }
    }
}

/// Whether a text ends within a character.
fn is_inside_character(text: &[u8]) -> bool {
    let last = &text[text.len().saturating_sub(3)..];
    let begins = last.iter().rposition(|byte| !matches!(byte, 0x80..=0xbf));
    begins.is_some_and(|at| {
        let length = match last[at] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        last.len() - at < length
    })
}
