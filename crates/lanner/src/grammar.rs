//! Grammars of answers as the engine's constraints.

use std::sync::{Arc, OnceLock};

use chat::{
    Tokenizer,
    grammar::{Grammar, Grammars, Matcher, Source, Start},
};
use engine::{Constraint, ConstraintState, ModelInfo, TokenSet};

/// The grammars of a model, made when the first is needed: that takes a moment.
#[derive(Default)]
pub(crate) struct ModelGrammars(OnceLock<Result<Arc<Grammars>, String>>);

impl ModelGrammars {
    /// # Errors
    /// The model's tokens cannot follow grammars.
    pub(crate) fn get(&self, tokenizer: &Arc<Tokenizer>, info: &ModelInfo) -> chat::Result<Arc<Grammars>> {
        let make = || {
            let grammars = Grammars::new(tokenizer.clone(), info.vocab_size, &info.eos_ids);
            grammars.map(Arc::new).map_err(|error| match error {
                chat::Error::Grammar(message) => message,
                other => other.to_string(),
            })
        };
        self.0.get_or_init(make).clone().map_err(chat::Error::Grammar)
    }
}

/// Compiles a grammar that begins at `start`.
///
/// # Errors
/// The grammar cannot be used.
pub(crate) fn constraint(
    grammars: &Grammars,
    source: &Source,
    start: &Start,
) -> chat::Result<Arc<dyn Constraint>> {
    Ok(Arc::new(GrammarConstraint(grammars.compile(source, start)?)))
}

#[derive(Debug)]
struct GrammarConstraint(Grammar);

struct GrammarState(Matcher);

impl Constraint for GrammarConstraint {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(GrammarState(self.0.matcher()))
    }
}

impl ConstraintState for GrammarState {
    fn push(&mut self, token: u32) -> Result<bool, String> {
        self.0.push(token).map_err(|error| error.to_string())
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        self.0.rewind(tokens).map_err(|error| error.to_string())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        let mask = self.0.mask().map_err(|error| error.to_string())?;
        Ok(mask.map_or_else(TokenSet::all, TokenSet::from_words))
    }

    fn forced(&mut self, max: usize) -> Result<Vec<u32>, String> {
        self.0.forced(max).map_err(|error| error.to_string())
    }
}
