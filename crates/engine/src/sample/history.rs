//! The distinct tokens of prompt and output, counted for penalties.

use std::{collections::HashMap, sync::Arc};

use kernels::PastToken;

#[derive(Default)]
pub(super) struct TokenHistory {
    /// Each distinct token once, shared with the draws of steps in flight.
    pub tokens: Arc<Vec<PastToken>>,
    /// Index in `tokens` by id.
    index: HashMap<u32, usize>,
}

impl TokenHistory {
    pub(super) fn new(prompt: Vec<u32>, generated: Vec<u32>) -> TokenHistory {
        let mut history = TokenHistory::default();
        prompt.into_iter().for_each(|id| history.count(id, 0));
        generated.into_iter().for_each(|id| history.push(id));
        history
    }

    /// Appends a generated token.
    pub(super) fn push(&mut self, id: u32) {
        self.count(id, 1);
    }

    fn count(&mut self, id: u32, generated: u32) {
        let tokens = Arc::make_mut(&mut self.tokens);
        match self.index.get(&id) {
            Some(&at) => tokens[at].generated += generated,
            None => {
                self.index.insert(id, tokens.len());
                tokens.push(PastToken { id, generated });
            }
        }
    }
}

/// `history` with further generated tokens.
pub(super) fn extended(history: &[PastToken], generated: impl IntoIterator<Item = u32>) -> Vec<PastToken> {
    let mut tokens = history.to_vec();
    for id in generated {
        match tokens.iter_mut().find(|token| token.id == id) {
            Some(token) => token.generated += 1,
            None => tokens.push(PastToken { id, generated: 1 }),
        }
    }
    tokens
}
