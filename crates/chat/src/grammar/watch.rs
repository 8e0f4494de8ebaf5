//! Searches free text for the start of a grammar: the end of the reasoning, or a trigger.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use llguidance::toktrie::TokenizerEnv;

use super::{Mask, Start, Trigger, compile::Shared};

/// Maximum line feeds between reasoning and a grammar; they are not part of the content.
pub(super) const MAX_LINE_FEEDS: usize = 2;

/// Strings that the two kinds of free text are searched for.
pub(super) struct Watches {
    /// Ends the reasoning.
    pub close: Watch,
    /// Begins the grammar.
    pub triggers: Watch,
    /// The token that opens reasoning.
    pub open: Option<u32>,
}

/// Texts and tokens to find.
pub(super) struct Watch {
    texts: Vec<Vec<u8>>,
    tokens: Vec<u32>,
    /// Masks by the end of the free text.
    masks: Mutex<HashMap<Vec<u8>, Mask>>,
}

/// Where a text was found: its index, and the first byte after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub text: usize,
    pub end: usize,
}

impl Watches {
    pub(super) fn new(start: &Start, shared: &Shared) -> Watches {
        let close = start.reasoning.iter().map(|reasoning| reasoning.markers.close.clone().into_bytes());
        let text = |trigger: &Trigger| match trigger {
            Trigger::Text(text) => Some(text.clone().into_bytes()),
            Trigger::Token(_) => None,
        };
        let token = |trigger: &Trigger| match trigger {
            Trigger::Token(id) => Some(*id),
            Trigger::Text(_) => None,
        };
        let open = start.reasoning.as_ref().and_then(|r| shared.tokenizer.token_to_id(&r.markers.open));
        Watches {
            close: Watch::new(close.collect(), vec![]),
            triggers: Watch::new(
                start.triggers.iter().filter_map(text).filter(|text| !text.is_empty()).collect(),
                start.triggers.iter().filter_map(token).collect(),
            ),
            open,
        }
    }
}

impl Watch {
    fn new(texts: Vec<Vec<u8>>, tokens: Vec<u32>) -> Watch {
        Watch { texts, tokens, masks: Mutex::default() }
    }

    pub(super) fn text(&self, found: Found) -> &[u8] {
        &self.texts[found.text]
    }

    pub(super) fn is_token(&self, id: u32) -> bool {
        self.tokens.contains(&id)
    }

    /// The first text to be complete; if two end together, the longer one.
    pub(super) fn find(&self, text: &[u8]) -> Option<Found> {
        let first = |(i, wanted): (usize, &Vec<u8>)| {
            let at = text.windows(wanted.len()).position(|window| window == wanted)?;
            Some(Found { text: i, end: at + wanted.len() })
        };
        let found = self.texts.iter().enumerate().filter_map(first);
        found.min_by_key(|found| (found.end, usize::MAX - self.texts[found.text].len()))
    }

    /// The longest end of a text that may be the start of a wanted one.
    pub(super) fn tail<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let longest = self.texts.iter().map(|wanted| overlap(text, wanted)).max().unwrap_or(0);
        &text[text.len() - longest..]
    }

    /// Tokens that may follow free text that ends with `tail`: all except `never` and those that
    /// complete a text with a continuation that `accepts` rejects.
    pub(super) fn mask(
        &self,
        tail: &[u8],
        shared: &Shared,
        never: &[u32],
        mut accepts: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Mask {
        let known = self.masks.lock().unwrap_or_else(PoisonError::into_inner).get(tail).cloned();
        if let Some(known) = known {
            return known;
        }
        let mut blocked = never.to_vec();
        for id in shared.completing(&self.texts, tail).iter().copied() {
            let text = [tail, shared.visible(id)].concat();
            if let Some(found) = self.find(&text)
                && !accepts(&self.texts[found.text], &text[found.end..])
            {
                blocked.push(id);
            }
        }
        let mask = (!blocked.is_empty()).then(|| shared.all_but(&blocked));
        self.masks.lock().unwrap_or_else(PoisonError::into_inner).insert(tail.to_vec(), mask.clone());
        mask
    }
}

impl Shared {
    /// The bytes that a token adds to the text; a special one adds its name.
    pub(super) fn visible(&self, id: u32) -> &[u8] {
        let trie = self.env.tok_trie();
        let bytes = if (id as usize) < trie.vocab_size() { trie.token(id) } else { &[] };
        bytes.strip_prefix(&[llguidance::toktrie::TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
    }

    /// Tokens that complete one of `texts` and continue after it.
    fn completing(&self, texts: &[Vec<u8>], tail: &[u8]) -> Arc<[u32]> {
        let key = (texts.to_vec(), tail.to_vec());
        let mut known = self.completing.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || {
            let ids = 0..self.env.tok_trie().vocab_size() as u32;
            ids.filter(|&id| completes(texts, tail, self.visible(id))).collect()
        };
        known.entry(key).or_insert_with(find).clone()
    }

    /// All tokens but these.
    pub(super) fn all_but(&self, blocked: &[u32]) -> Arc<[u32]> {
        let vocab_size = self.env.tok_trie().vocab_size();
        let mut words = vec![u32::MAX; vocab_size.div_ceil(32)];
        if let (Some(last), used @ 1..) = (words.last_mut(), vocab_size % 32) {
            *last >>= 32 - used;
        }
        blocked.iter().for_each(|&id| words[id as usize / 32] &= !(1 << (id % 32)));
        words.into()
    }
}

/// Whether a token with these bytes completes one of `texts` before its end.
fn completes(texts: &[Vec<u8>], tail: &[u8], bytes: &[u8]) -> bool {
    texts.iter().any(|text| {
        let from_tail = |begun: usize| {
            let rest = &text[begun..];
            tail.ends_with(&text[..begun]) && bytes.len() > rest.len() && bytes.starts_with(rest)
        };
        let within = || bytes.windows(text.len()).rev().skip(1).any(|window| window == text);
        (1..text.len().min(tail.len() + 1)).any(from_tail) || (bytes.len() > text.len() && within())
    })
}

/// Length of the longest end of `text` that is a proper beginning of `wanted`.
fn overlap(text: &[u8], wanted: &[u8]) -> usize {
    let longest = text.len().min(wanted.len().saturating_sub(1));
    (1..=longest).rev().find(|&n| text.ends_with(&wanted[..n])).unwrap_or(0)
}
