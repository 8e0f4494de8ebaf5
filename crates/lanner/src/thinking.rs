//! The thinking of answers: what requests and flags say of it, and its limit as a constraint of the
//! engine.

use std::sync::Arc;

use chat::thinking::{Next, Task, TaskKind, ThinkingLimit, ThinkingRule, ThinkingTracker};
use clap::ValueEnum;
use engine::{Constraint, ConstraintState, TokenSet};
use serde::Deserialize;

/// Most tokens of thinking, unless a flag or a request says otherwise.
pub const DEFAULT_BUDGET: usize = 32_768;
/// Part of a limit on thinking and answer together that the answer keeps, as a divisor.
const ANSWER_SHARE: usize = 4;
/// Most tokens that it keeps.
const MAX_RESERVE: usize = 1024;

/// The model's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct ThinkingDefaults {
    pub budget: usize,
    pub escape: Escape,
    /// Who decides for requests that do not say whether to think.
    pub choice: ThinkingChoice,
}

/// Who decides whether an answer thinks if its request does not say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingChoice {
    /// The chat template does.
    #[default]
    Template,
    /// The rules in docs/thinking.md do.
    Auto,
    /// It thinks.
    On,
    /// It does not.
    Off,
}

/// What a request says of its thinking, besides whether it thinks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThinkingParams {
    /// Most tokens; `None`: the model's default.
    pub budget: Option<usize>,
    /// `None`: the model's default.
    pub escape: Option<Escape>,
    /// Whether the maximum number of new tokens counts thinking too.
    pub shares_max_tokens: bool,
    /// Whether an answer that repeats itself ends.
    pub stop_repetition: bool,
}

/// The sentence that thinking which is cut ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Escape {
    /// None.
    Off,
    /// One that fits the task.
    #[default]
    On,
    Custom(String),
}

/// Whether an answer thinks, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinkingDecision {
    pub enabled: bool,
    pub rule: ThinkingRule,
}

/// Limits of an answer besides the engine's.
#[derive(Clone, Debug, Default)]
pub struct AnswerLimits {
    pub thinking: Option<Arc<ThinkingLimit>>,
    /// Most tokens after the thinking.
    pub max_answer_tokens: Option<usize>,
    pub stop_repetition: bool,
}

impl Default for ThinkingDefaults {
    fn default() -> ThinkingDefaults {
        ThinkingDefaults { budget: DEFAULT_BUDGET, escape: Escape::On, choice: ThinkingChoice::Template }
    }
}

impl From<&str> for Escape {
    fn from(text: &str) -> Escape {
        match text {
            "off" => Escape::Off,
            "on" => Escape::On,
            text => Escape::Custom(text.to_owned()),
        }
    }
}

impl Escape {
    /// The sentence, for a request whose fields show this kind of task, else for the user's words.
    pub fn transition(&self, kind: Option<TaskKind>, user_text: &str) -> String {
        match self {
            Escape::Off => String::new(),
            Escape::Custom(text) => text.clone(),
            Escape::On => {
                let task = kind.map(|kind| Task::with_kind(kind, user_text));
                task.unwrap_or_else(|| Task::of(user_text)).transition()
            }
        }
    }
}

/// Tokens of `room` that thinking may take, if the answer keeps its part.
pub fn thinking_room(room: usize) -> usize {
    room - (room / ANSWER_SHARE).min(MAX_RESERVE)
}

/// The limit as a constraint; `inner` is that of the answer.
pub fn constraint(
    limit: Arc<ThinkingLimit>,
    inner: Option<Arc<dyn Constraint>>,
    vocab_size: usize,
    eos_ids: &[u32],
) -> Arc<dyn Constraint> {
    let ids = 0..vocab_size as u32;
    let no_end = TokenSet::of(vocab_size, ids.filter(|id| !eos_ids.contains(id)));
    Arc::new(LimitedThinking { limit, inner, no_end, vocab_size })
}

#[derive(Debug)]
struct LimitedThinking {
    limit: Arc<ThinkingLimit>,
    inner: Option<Arc<dyn Constraint>>,
    /// All tokens but those that end an answer.
    no_end: TokenSet,
    vocab_size: usize,
}

struct LimitedState {
    tracker: ThinkingTracker,
    inner: Option<Box<dyn ConstraintState>>,
    no_end: TokenSet,
    vocab_size: usize,
}

impl LimitedState {
    /// The tokens that the thinking allows.
    fn set(&self, next: Next) -> TokenSet {
        match next {
            Next::Forced([first, ..]) => TokenSet::of(self.vocab_size, [*first]),
            Next::NoEnd => self.no_end.clone(),
            Next::Any | Next::Forced([]) => TokenSet::all(),
        }
    }
}

impl Constraint for LimitedThinking {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(LimitedState {
            tracker: self.limit.start(),
            inner: self.inner.as_ref().map(|inner| inner.start()),
            no_end: self.no_end.clone(),
            vocab_size: self.vocab_size,
        })
    }

    fn is_light(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.is_light())
    }
}

impl ConstraintState for LimitedState {
    fn push(&mut self, token: u32) -> Result<bool, String> {
        if let Some(inner) = &mut self.inner
            && !inner.push(token)?
        {
            return Ok(false);
        }
        let pushed = self.tracker.push(token);
        if let Some(inner) = self.inner.as_mut().filter(|_| !pushed) {
            inner.rewind(1)?;
        }
        Ok(pushed)
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        if !self.tracker.rewind(tokens) {
            return Err(format!("{tokens} tokens are too many to be removed"));
        }
        self.inner.as_mut().map_or(Ok(()), |inner| inner.rewind(tokens))
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        let own = self.set(self.tracker.next());
        match &mut self.inner {
            Some(inner) if !matches!(self.tracker.next(), Next::Forced(_)) => {
                let answer = inner.allowed()?;
                Ok(if answer == TokenSet::all() { own } else { answer })
            }
            _ => Ok(own),
        }
    }

    fn forced(&mut self, max: usize) -> Result<Vec<u32>, String> {
        match self.tracker.next() {
            Next::Forced(tokens) => Ok(tokens.iter().copied().take(max).collect()),
            Next::Any | Next::NoEnd => self.inner.as_mut().map_or(Ok(vec![]), |inner| inner.forced(max)),
        }
    }

    fn allowed_after_next(&mut self) -> Result<Option<TokenSet>, String> {
        // What a constraint of the answer allows depends on every token.
        let next = self.tracker.after_next().filter(|_| self.inner.is_none());
        Ok(next.map(|next| self.set(next)))
    }
}
