//! Cache of token ids for parts of prompts: prompts of one client repeat tool schemas and earlier
//! turns.
//!
//! A text is split before special tokens that the tokenizer finds in any context, which does not
//! change its ids: special tokens are extracted from the raw text first, and the text between two
//! of them is normalized, split and tokenized independently. Some tokenizers treat the start of a
//! text specially, but a part starts with the special token it was split before, so its text is
//! never at the start.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokenizers::AddedToken;

/// Parts of fewer bytes are not worth caching.
const MIN_PART: usize = 64;
/// Maximum bytes compared to find the split points; published tokenizers need a few hundred
/// thousand.
const MAX_WORK: usize = 64 << 20;
/// Bytes of an entry besides its text and ids.
const OVERHEAD: usize = 160;
/// An entry has at most the budget divided by this.
const MAX_ENTRY_DIVISOR: usize = 4;

/// Special tokens before which a text can be split.
#[derive(Debug)]
pub(crate) struct SplitPoints {
    tokens: HashSet<String>,
    /// First characters of the tokens.
    first_chars: Vec<char>,
    /// Lengths of the tokens in bytes, ascending.
    lengths: Vec<usize>,
}

impl SplitPoints {
    /// Selects the added tokens that are found in any context: no other token contains them or
    /// overlaps with their start, and they neither require nor consume the text before them.
    pub(crate) fn new<'a>(added: impl Iterator<Item = &'a AddedToken>) -> SplitPoints {
        // Normalized tokens are searched for later, in the text between these.
        let raw: Vec<&AddedToken> = added.filter(|token| !token.normalized).collect();
        // Every suffix of every token is looked up.
        let work = raw.iter().fold(0usize, |sum, token| sum.saturating_add(token.content.len().pow(2)));
        if work > MAX_WORK {
            return SplitPoints::from_tokens(HashSet::new());
        }
        let plain = |token: &&&AddedToken| {
            let text = &token.content;
            !token.single_word && !token.lstrip && !text.is_empty() && text.trim().len() == text.len()
        };
        let mut tokens: HashSet<String> =
            raw.iter().filter(plain).map(|token| token.content.clone()).collect();
        let inner_boundaries = |text: &str| text.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
        let suffixes: HashSet<&str> = raw
            .iter()
            .flat_map(|t| inner_boundaries(&t.content).into_iter().map(|at| &t.content[at..]))
            .collect();
        tokens.retain(|token| {
            let overlaps = inner_boundaries(token).into_iter().any(|at| suffixes.contains(&token[..at]));
            !overlaps && !suffixes.contains(token.as_str())
        });
        let all = SplitPoints::from_tokens(tokens);
        let contained = |token: &&AddedToken| {
            let starts = token.content.char_indices().map(|(at, _)| &token.content[at..]);
            let others = starts.flat_map(|text| all.tokens_at(text)).filter(|found| *found != token.content);
            others.map(str::to_owned).collect::<Vec<_>>()
        };
        let contained: HashSet<String> = raw.iter().flat_map(contained).collect();
        SplitPoints::from_tokens(all.tokens.into_iter().filter(|token| !contained.contains(token)).collect())
    }

    fn from_tokens(tokens: HashSet<String>) -> SplitPoints {
        let mut first_chars: Vec<char> = tokens.iter().filter_map(|token| token.chars().next()).collect();
        let mut lengths: Vec<usize> = tokens.iter().map(String::len).collect();
        first_chars.sort();
        first_chars.dedup();
        lengths.sort();
        lengths.dedup();
        SplitPoints { tokens, first_chars, lengths }
    }

    /// The tokens at the start of a text.
    fn tokens_at<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let starts = self.lengths.iter().filter_map(move |&length| text.get(..length));
        starts.filter(|start| self.tokens.contains(*start))
    }

    /// Splits the text before every such token.
    fn split<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let (mut parts, mut start) = (vec![], 0);
        for (at, _) in text.match_indices(&self.first_chars[..]) {
            if at > start && self.tokens_at(&text[at..]).next().is_some() {
                parts.push(&text[start..at]);
                start = at;
            }
        }
        parts.push(&text[start..]);
        parts
    }
}

/// LRU cache of the ids of text parts, limited in bytes.
#[derive(Debug)]
pub(crate) struct TokenCache {
    budget: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    /// Least recently used first.
    order: BTreeMap<u64, Arc<str>>,
    /// Number of uses so far.
    clock: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    ids: Arc<[u32]>,
    used: u64,
}

impl TokenCache {
    pub(crate) fn new(budget: usize) -> TokenCache {
        TokenCache { budget, state: Mutex::default() }
    }

    /// The ids of a text; `encode` computes those of a part.
    pub(crate) fn encode<E>(
        &self,
        text: &str,
        split_points: &SplitPoints,
        encode: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, E> {
        let mut ids = vec![];
        for part in split_points.split(text) {
            if part.len() < MIN_PART {
                ids.extend(encode(part)?);
            } else if let Some(cached) = self.with(|state| state.get(part)) {
                ids.extend_from_slice(&cached);
            } else {
                let new = encode(part)?;
                ids.extend_from_slice(&new);
                self.with(|state| state.insert(part, new, self.budget));
            }
        }
        Ok(ids)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn get(&mut self, part: &str) -> Option<Arc<[u32]>> {
        let entry = self.entries.get_mut(part)?;
        self.clock += 1;
        let text = self.order.remove(&entry.used)?;
        entry.used = self.clock;
        self.order.insert(self.clock, text);
        Some(entry.ids.clone())
    }

    fn insert(&mut self, part: &str, ids: Vec<u32>, budget: usize) {
        let bytes = size(part, &ids);
        if bytes > budget / MAX_ENTRY_DIVISOR || self.entries.contains_key(part) {
            return;
        }
        while self.bytes + bytes > budget
            && let Some((_, text)) = self.order.pop_first()
            && let Some(entry) = self.entries.remove(&text)
        {
            self.bytes -= size(&text, &entry.ids);
        }
        self.clock += 1;
        self.bytes += bytes;
        let text: Arc<str> = part.into();
        self.order.insert(self.clock, text.clone());
        self.entries.insert(text, Entry { ids: ids.into(), used: self.clock });
    }
}

fn size(text: &str, ids: &[u32]) -> usize {
    text.len() + size_of_val(ids) + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(content: &str) -> AddedToken {
        AddedToken::from(content, true)
    }

    fn split_tokens(tokens: &[AddedToken]) -> Vec<String> {
        let mut tokens: Vec<String> = SplitPoints::new(tokens.iter()).tokens.into_iter().collect();
        tokens.sort();
        tokens
    }

    #[test]
    fn split_points_are_tokens_found_in_any_context() {
        assert_eq!(split_tokens(&["<a>", "<b>"].map(token)), ["<a>", "<b>"]);
        assert_eq!(split_tokens(&["<a>", "<a><b>"].map(token)), ["<a><b>"], "the longer one replaces it");
        assert_eq!(split_tokens(&["<b>", "<a><b>"].map(token)), ["<a><b>"]);
        assert_eq!(split_tokens(&["b", "abc"].map(token)), ["abc"]);
        assert_eq!(split_tokens(&["ab", "ca"].map(token)), ["ca"], "`cab` matches `ca`, and then not `ab`");
        assert_eq!(split_tokens(&["aba", "x"].map(token)), ["x"], "`ababa` matches only one");
        assert_eq!(split_tokens(&[token("<a>").lstrip(true), token("<b>").rstrip(true)]), ["<b>"]);
        assert_eq!(
            split_tokens(&[token("<a>").single_word(true), token(" <b>"), token("\n"), token("c")]),
            ["c"]
        );
        assert_eq!(split_tokens(&[token("<a>").normalized(true), token("<a><b>")]), ["<a><b>"]);
    }

    #[test]
    fn text_is_split_before_every_token() {
        let split_points = SplitPoints::new(["<a>", "<bb>"].map(token).iter());
        for (text, parts) in [
            ("", &[""] as &[&str]),
            ("<a>", &["<a>"]),
            ("x<a>y<bb><a><<a>", &["x", "<a>y", "<bb>", "<a><", "<a>"]),
            ("<ä<bb", &["<ä<bb"]),
        ] {
            assert_eq!(split_points.split(text), parts);
        }
    }

    #[test]
    fn token_cache_evicts_least_recently_used_within_budget() {
        let entry = size(&"x".repeat(100), &[0; 100]);
        let (cache, split_points) = (TokenCache::new(5 * entry), SplitPoints::new([].iter()));
        let calls = std::cell::Cell::new(0);
        let is_cached = |letter: &str, length| {
            calls.set(0);
            let encode = |text: &str| {
                calls.set(calls.get() + 1);
                Ok::<_, ()>(text.bytes().map(u32::from).collect())
            };
            let text = letter.repeat(length);
            assert_eq!(cache.encode(&text, &split_points, encode), encode(&text));
            calls.get() == 1
        };
        assert!(["a", "b", "c", "d", "e"].iter().all(|letter| !is_cached(letter, 100)));
        assert!(["a", "c", "d", "e"].iter().all(|letter| is_cached(letter, 100)));
        assert!(!is_cached("f", 100), "evicts b");
        assert!(is_cached("a", 100) && !is_cached("b", 100), "evicts c");
        assert!(!is_cached("c", 100));
        assert!(!is_cached("g", 200) && !is_cached("g", 200), "too large");
        assert!(!is_cached("h", 63) && !is_cached("h", 63), "too small");
        cache.with(|state| {
            let bytes: usize = state.entries.iter().map(|(text, entry)| size(text, &entry.ids)).sum();
            assert_eq!((state.bytes, state.entries.len(), state.order.len()), (bytes, 5, 5));
            assert!(bytes <= 5 * entry);
        });
    }
}
