//! A table of n-grams: contexts of a few tokens, each with its likeliest next token. Built once
//! from texts, loaded whole, used where a sequence itself has no match.

mod builder;
mod file;

use std::{fmt, path::PathBuf};

pub use self::builder::Builder;

/// Maximum tokens of a context.
pub const MAX_ORDER: usize = 16;

/// Bits of an entry: part of the context's hash, then the token, then the confidence. Contexts with
/// the same hash bits collide and cost a wrong draft: one lookup in 10,000 of a table of 25 million
/// entries.
const HASH_BITS: u32 = 38;
const TOKEN_BITS: u32 = 20;
const CONFIDENCE_BITS: u32 = 6;

/// Contexts with their likeliest next tokens, for one tokenizer.
pub struct NgramTable {
    /// The header.
    pub info: TableInfo,
    /// Ascending.
    entries: Vec<u64>,
}

/// Header of a table.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TableInfo {
    /// Fingerprint of the tokenizer: token ids of another one mean other texts.
    pub tokenizer: String,
    /// The model whose tokenizer it is, for messages.
    pub model: String,
    /// Maximum tokens of a context.
    pub order: usize,
    /// Contexts that occurred less often are not in the table.
    pub min_count: u32,
    /// Tokens of the texts.
    pub tokens: u64,
    /// Number of contexts.
    pub entries: u64,
    /// BLAKE3 of the entries, in hexadecimal digits.
    checksum: String,
}

impl TableInfo {
    /// Size of the file.
    pub fn bytes(&self) -> u64 {
        file::HEADER as u64 + 8 * self.entries
    }
}

/// Why an n-gram table cannot be read, written or used.
#[derive(Debug, thiserror::Error)]
pub enum NgramTableError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The table.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The table.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file has no header of an n-gram table.
    #[error("{} is not an n-gram table; make one with lanner ngram build", .0.display())]
    NotATable(PathBuf),
    /// Header and entries contradict each other or the checksum.
    #[error("the n-gram table {} is damaged: {problem}; make it again", path.display())]
    Damaged {
        /// The table.
        path: PathBuf,
        /// The reason.
        problem: &'static str,
    },
    /// The table has token ids of another tokenizer.
    #[error(
        "the n-gram table {} was made with the tokenizer of {made_with}, which is not that of {model}; make one for it with \
         lanner ngram build", path.display()
    )]
    OtherTokenizer {
        /// The table.
        path: PathBuf,
        /// The model whose tokenizer made the table.
        made_with: String,
        /// The model that was to use it.
        model: String,
    },
    /// This token id does not fit into an entry.
    #[error("token id {0} is too large for an n-gram table")]
    Token(u32),
}

impl NgramTable {
    /// The likeliest token after the longest known context at the end of `tokens`, and its
    /// probability: its share of what followed, as if one more token had followed, so that rare
    /// contexts count for less.
    pub fn next(&self, tokens: &[u32]) -> Option<(u32, f32)> {
        let known = hashes(tokens, self.info.order).filter_map(|hash| self.find(hash));
        known.last().map(|entry| (token(entry), confidence(entry)))
    }

    fn find(&self, hash: u64) -> Option<u64> {
        let key = key(hash);
        let at = self.entries.partition_point(|entry| entry >> (TOKEN_BITS + CONFIDENCE_BITS) < key);
        self.entries.get(at).copied().filter(|entry| entry >> (TOKEN_BITS + CONFIDENCE_BITS) == key)
    }
}

impl fmt::Debug for NgramTable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("NgramTable").field(&self.info).finish()
    }
}

/// Hashes of the last token, the last two, and so on, at most `order`.
fn hashes(tokens: &[u32], order: usize) -> impl Iterator<Item = u64> {
    tokens.iter().rev().take(order).scan(0, |hash, &token| {
        *hash = mix(*hash ^ (u64::from(token) + 1));
        Some(*hash)
    })
}

fn key(hash: u64) -> u64 {
    hash >> (64 - HASH_BITS)
}

/// The entry of a context that this token followed `count` of `total` times.
fn entry(hash: u64, token: u32, count: u64, total: u64) -> u64 {
    let confidence = (count << CONFIDENCE_BITS) / (total + 1);
    (key(hash) << TOKEN_BITS | u64::from(token)) << CONFIDENCE_BITS | confidence
}

fn token(entry: u64) -> u32 {
    (entry >> CONFIDENCE_BITS) as u32 & ((1 << TOKEN_BITS) - 1)
}

fn confidence(entry: u64) -> f32 {
    let steps = 1 << CONFIDENCE_BITS;
    ((entry % steps) as f32 + 0.5) / steps as f32
}

/// The finaliser of SplitMix64 (Steele et al. 2014).
fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
