//! Key of stored state: tokens, and the salt of the request that computed it.

use crate::api::{CacheSalt, Image, Request};

/// Tokens of a sequence, or what [stands for them](prompt_keys), with a salt. State stored under
/// one salt is not found under another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PrefixKey<'a> {
    pub salt: Option<CacheSalt>,
    pub tokens: &'a [u32],
}

/// Keys from here on stand for tokens of images; token ids are smaller.
const IMAGE_KEYS: u32 = 1 << 31;
/// Below this many tokens an image's keys hold too few bits to tell it from every other.
const TELLING_TOKENS: usize = 8;

/// Whether the key of a token is that of a token of an image.
pub(crate) fn is_image_key(key: u32) -> bool {
    key >= IMAGE_KEYS
}

/// The keys of a request's prompt: its token ids, but for the tokens of images numbers that follow
/// from the image and the token's place in it, 31 bits each.
pub(crate) fn prompt_keys(request: &Request) -> Vec<u32> {
    let mut keys = request.prompt.clone();
    for image in &request.images {
        let mut numbers = blake3::Hasher::new().update(&image.digest).finalize_xof();
        for position in image.positions.iter().cloned().flatten() {
            let mut number = [0; 4];
            numbers.fill(&mut number);
            keys[position] = IMAGE_KEYS | u32::from_le_bytes(number);
        }
    }
    keys
}

/// The salt of a request's sequence. That of a request with tiny images differs for other images.
pub(crate) fn image_salt(request: &Request) -> Option<CacheSalt> {
    let tiny: Vec<&Image> = request.images.iter().filter(|i| i.num_tokens() < TELLING_TOKENS).collect();
    if tiny.is_empty() {
        return request.cache_salt;
    }
    let hex = |digest: [u8; 32]| blake3::Hash::from_bytes(digest).to_hex().to_string();
    let own = request.cache_salt.map(CacheSalt::to_hex);
    let digests: Vec<String> = tiny.iter().map(|image| hex(image.digest)).collect();
    let parts = digests.iter().map(|digest| Some(digest.as_str()));
    Some(CacheSalt::new([own.as_deref()].into_iter().chain(parts)))
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
