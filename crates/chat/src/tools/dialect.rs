//! The syntaxes of tool calls, by model family.

use std::{fmt, future::Future, pin::Pin, str::FromStr, sync::Arc};

use super::{
    ToolSet, hermes,
    reader::{Reader, Result},
};

/// How a model family writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Qwen 2.5, Qwen3, Hermes, merlin.
    Hermes,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 1] = [Self::Hermes];

    /// The name, as flags and `/v1/models` show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
        }
    }

    /// The dialect that a chat template's source teaches.
    pub fn detect(template: &str) -> Option<Self> {
        template.contains(hermes::OPEN).then_some(Self::Hermes)
    }

    /// Tokens that a decoder must show although they are special.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[hermes::OPEN, hermes::CLOSE],
        }
    }

    /// The texts that begin a call.
    pub(super) fn triggers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[hermes::OPEN],
        }
    }

    /// Reads one call, or one section of calls, from its trigger on.
    pub(super) fn read(self, reader: Reader, tools: Arc<ToolSet>) -> CallReading {
        match self {
            Self::Hermes => Box::pin(hermes::read(reader, tools)),
        }
    }
}

/// A suspended parser of calls.
pub(super) type CallReading = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|dialect| dialect.name() == name);
        found.ok_or_else(|| format!("`{name}` is not a tool dialect; there are {}", names()))
    }
}
