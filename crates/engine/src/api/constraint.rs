//! Constraints of a request on each next token, for grammars and budgets.

use std::{fmt::Debug, sync::Arc};

use mlx::{Array, Dtype};

/// Decides which tokens may come next, position by position, on the engine's thread.
///
/// It is called for any history, generated or drafted, in any order and any number of times. The
/// same history must get the same answer.
pub trait Constraint: Debug + Send + Sync {
    /// What may follow the prompt and the tokens `generated`.
    fn next(&self, generated: &[u32]) -> Next;
}

/// Which tokens may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Any,
    OneOf(TokenSet),
    /// Exactly these tokens, at least one, in this order. After the first of them the constraint
    /// must return the rest.
    Exactly(Vec<u32>),
}

/// Tokens of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSet {
    /// Bit `id % 32` of word `id / 32`, none past the last word; `None`: all of them.
    words: Option<Arc<[u32]>>,
}

impl TokenSet {
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

    pub fn allows(&self, id: u32) -> bool {
        let word = |words: &Arc<[u32]>| words.get(id as usize / 32).copied().unwrap_or(0);
        self.words.as_ref().is_none_or(|words| word(words) >> (id % 32) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.words.as_ref().is_some_and(|words| words.iter().all(|word| *word == 0))
    }

    /// Its token, if it has exactly one.
    pub fn only(&self) -> Option<u32> {
        let words = self.words.as_ref()?;
        let mut ones = words.iter().enumerate().filter(|(_, word)| **word != 0);
        let ((i, word), None) = (ones.next()?, ones.next()) else { return None };
        word.is_power_of_two().then(|| i as u32 * 32 + word.trailing_zeros())
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

impl Next {
    /// As a set of some of `vocab_size` tokens.
    pub(crate) fn set(self, vocab_size: usize) -> TokenSet {
        match self {
            Next::Any => TokenSet::all(),
            Next::OneOf(set) => set,
            Next::Exactly(tokens) => TokenSet::of(vocab_size, tokens.first().copied()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_set_contains_its_ids_alone() {
        let set = TokenSet::of(70, [3, 64, 69, 70, 900]);
        let ids: Vec<u32> = (0..200).filter(|&id| set.allows(id)).collect();
        assert_eq!((ids, set.only(), set.is_empty()), (vec![3, 64, 69], None, false));
        assert_eq!(TokenSet::of(70, [64]).only(), Some(64));
        assert!(TokenSet::of(70, []).is_empty() && !TokenSet::all().is_empty());
        assert!(TokenSet::all().allows(7) && TokenSet::all().only().is_none());
    }
}
