//! Constraints of a request on each next token, for grammars and budgets.

use std::{fmt::Debug, sync::Arc};

use mlx::{Array, Dtype};

/// Decides which tokens may come next.
///
/// It runs on worker threads beside the model's steps, and must be a function of the tokens alone:
/// the answer depends on it.
pub trait Constraint: Debug + Send + Sync {
    /// The state before the first token of an answer.
    fn start(&self) -> Box<dyn ConstraintState>;

    /// Whether its work takes less time than handing it to another thread. Only then it is asked
    /// for [`allowed_after_next`](ConstraintState::allowed_after_next).
    fn is_light(&self) -> bool {
        false
    }
}

/// A constraint's state of one answer. An error fails the request, once the answer gets there.
pub trait ConstraintState: Send {
    /// Appends a token; `false`, and nothing changes, if it is not allowed.
    ///
    /// # Errors
    /// The constraint cannot continue.
    fn push(&mut self, token: u32) -> Result<bool, String>;

    /// Removes the last `tokens` tokens.
    ///
    /// # Errors
    /// The constraint cannot continue.
    fn rewind(&mut self, tokens: usize) -> Result<(), String>;

    /// The tokens that may come next. An empty set fails the request.
    ///
    /// # Errors
    /// The constraint cannot continue.
    fn allowed(&mut self) -> Result<TokenSet, String>;

    /// At most `max` tokens that must come next, for drafts. A token that `allowed` does not allow
    /// costs time, never the answer.
    ///
    /// # Errors
    /// The constraint cannot continue.
    fn forced(&mut self, max: usize) -> Result<Vec<u32>, String>;

    /// The tokens that may come after the next one, if they are the same whatever the next one is;
    /// `None`: they depend on it. On a GPU steps are built before the last token is read where this
    /// is known.
    ///
    /// # Errors
    /// The constraint cannot continue.
    fn allowed_after_next(&mut self) -> Result<Option<TokenSet>, String> {
        Ok(None)
    }
}

/// Tokens of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSet {
    /// Bit `id % 32` of word `id / 32`, none past the last word; `None`: all of them.
    words: Option<Arc<[u32]>>,
}

impl TokenSet {
    /// Every token of the vocabulary.
    pub fn all() -> TokenSet {
        TokenSet { words: None }
    }

    /// Some of `vocab_size` tokens; larger ids are ignored.
    pub fn of(vocab_size: usize, ids: impl IntoIterator<Item = u32>) -> TokenSet {
        let mut words = vec![0u32; vocab_size.div_ceil(32)];
        let known = ids.into_iter().filter(|&id| (id as usize) < vocab_size);
        known.for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
        TokenSet { words: Some(words.into()) }
    }

    /// Bit `id % 32` of word `id / 32` of each token, none past the last word.
    pub fn from_words(words: Arc<[u32]>) -> TokenSet {
        TokenSet { words: Some(words) }
    }

    /// Whether it contains token `id`.
    pub fn allows(&self, id: u32) -> bool {
        let word = |words: &Arc<[u32]>| words.get(id as usize / 32).copied().unwrap_or(0);
        self.words.as_ref().is_none_or(|words| word(words) >> (id % 32) & 1 == 1)
    }

    /// Whether it contains no token.
    pub fn is_empty(&self) -> bool {
        self.words.as_ref().is_some_and(|words| words.iter().all(|word| *word == 0))
    }

    /// Bit `id % 32` of word `id / 32` of each; `None`: all of them.
    pub(crate) fn words(&self) -> Option<&[u32]> {
        self.words.as_deref()
    }

    /// Bool `[vocab_size]`; `None`: all of them.
    pub(crate) fn array(&self, vocab_size: i32) -> Option<Array> {
        let words = self.words.as_ref()?;
        let bit = |id: i32| words.get(id as usize / 32).map_or(0, |word| word >> (id % 32) & 1);
        let bits: Vec<u32> = (0..vocab_size).map(bit).collect();
        Some(Array::from_slice(&bits, &[vocab_size]).astype(Dtype::Bool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_set_contains_its_ids_alone() {
        let set = TokenSet::of(70, [3, 64, 69, 70, 900]);
        let ids: Vec<u32> = (0..200).filter(|&id| set.allows(id)).collect();
        assert_eq!((ids, set.is_empty()), (vec![3, 64, 69], false));
        assert_eq!(TokenSet::from_words([0b1001, 1].into()), TokenSet::of(64, [0, 3, 32]));
        assert!(TokenSet::of(70, []).is_empty() && !TokenSet::all().is_empty());
        assert!(TokenSet::all().allows(7));
    }
}
