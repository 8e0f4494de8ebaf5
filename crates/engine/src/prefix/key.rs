//! Key of stored state: tokens, and the salt of the request that computed it.

use crate::api::{CacheSalt, Request};

/// Tokens of a sequence with a salt. State stored under one salt is not found under another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PrefixKey<'a> {
    pub salt: Option<CacheSalt>,
    pub tokens: &'a [u32],
}

/// Length of the common prefix of two sequences.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<'a> PrefixKey<'a> {
    /// Tokens of a request's sequence.
    pub(crate) fn of(request: &Request, tokens: &'a [u32]) -> PrefixKey<'a> {
        PrefixKey { salt: request.cache_salt, tokens }
    }

    /// The first `length` tokens.
    pub(crate) fn first(self, length: usize) -> PrefixKey<'a> {
        PrefixKey { tokens: &self.tokens[..length], ..self }
    }

    /// Whether it begins with all of `other`.
    pub(crate) fn starts_with(&self, other: &PrefixKey) -> bool {
        self.salt == other.salt && self.tokens.starts_with(other.tokens)
    }

    /// Length of the common prefix; 0 under different salts.
    pub(crate) fn common(&self, other: &PrefixKey) -> usize {
        if self.salt == other.salt { common(self.tokens, other.tokens) } else { 0 }
    }
}

/// The same, owned.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OwnedPrefixKey {
    pub salt: Option<CacheSalt>,
    pub tokens: Vec<u32>,
}

impl OwnedPrefixKey {
    pub(crate) fn as_key(&self) -> PrefixKey<'_> {
        PrefixKey { salt: self.salt, tokens: &self.tokens }
    }
}

impl From<PrefixKey<'_>> for OwnedPrefixKey {
    fn from(key: PrefixKey) -> OwnedPrefixKey {
        OwnedPrefixKey { salt: key.salt, tokens: key.tokens.to_vec() }
    }
}
