//! A tokenizer as llguidance sees it: a trie of the tokens' bytes, and canonical tokenization.

use std::sync::Arc;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::Tokenizer;

/// Encoded before a text, so that tokenizers which add a space to the start of texts add it there.
const GUARD: &str = "=";

pub(super) struct TokenEnv {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl TokenEnv {
    /// Tokens from `vocab_size` on do not exist for the model. `eos_ids` is not empty.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, eos_ids: &[u32]) -> TokenEnv {
        let bytes = |id: u32| {
            let text = tokenizer.token_bytes(id);
            match tokenizer.is_special(id) || eos_ids.contains(&id) {
                // Special tokens match no text.
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER][..], &text].concat(),
                false => text,
            }
        };
        let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(bytes).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, eos_ids[0]), &words);
        TokenEnv { tokenizer, trie: trie.with_eos_tokens(eos_ids) }
    }

    /// The tokens of a text, if they spell exactly it.
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let spells = |ids: &[u32], text: &str| {
            let known = ids.iter().all(|&id| (id as usize) < self.trie.vocab_size());
            known && self.trie.decode_raw(ids) == text.as_bytes()
        };
        let ids = self.tokenizer.encode(text, false).ok()?;
        if spells(&ids, text) {
            return Some(ids);
        }
        let ids = self.tokenizer.encode(&(GUARD.to_owned() + text), false).ok()?;
        let (_, rest) = ids.split_first()?;
        spells(rest, text).then(|| rest.to_vec())
    }
}

impl TokenizerEnv for TokenEnv {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let encode =
            |text: &str| self.encode(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()));
        self.trie.tokenize_with_greedy_fallback(bytes, encode)
    }
}
