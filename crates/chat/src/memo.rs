//! Token ids of pieces of text met before. Prompts of one client repeat most of what they say: the schema of its tools, the
//! turns so far.
//!
//! A text may be cut before a special token without any change to its ids if the tokenizer finds that token there whatever
//! stands around it: special tokens are taken out of the raw text before anything else, and what lies between two of them is
//! normalised, split and tokenised by itself. Only the start of a text is special to some tokenizers; a piece begins with
//! the token it was cut before, so nothing behind that is at the start, in the text or in the piece.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokenizers::AddedToken;

/// Shorter pieces are tokenised faster than they are worth keeping.
const SHORTEST: usize = 64;
/// The most bytes that finding out where texts may be cut looks at; published tokenizers need a few hundred thousand.
const MOST_WORK: usize = 64 << 20;
/// What an entry costs beside its text and ids.
const OVERHEAD: usize = 160;
/// The part of the budget that one piece may take, as a divisor.
const LARGEST: usize = 4;

/// Special tokens before which a text may be cut.
#[derive(Debug)]
pub struct Cuts {
    tokens: HashSet<String>,
    /// Of the tokens.
    first_chars: Vec<char>,
    /// In bytes, ascending.
    lengths: Vec<usize>,
}

impl Cuts {
    /// Those of all added tokens that are found wherever they stand: no other one holds them, or ends as they begin, and
    /// none of them asks for or takes what stands before it.
    pub fn new<'a>(added: impl Iterator<Item = &'a AddedToken>) -> Cuts {
        // Those that are normalised are looked for later, in what lies between these.
        let raw: Vec<&AddedToken> = added.filter(|token| !token.normalized).collect();
        // Every end of every token is looked up.
        let work = raw.iter().fold(0usize, |sum, token| sum.saturating_add(token.content.len().pow(2)));
        if work > MOST_WORK {
            return Cuts::of(HashSet::new());
        }
        let plain = |token: &&&AddedToken| {
            let text = &token.content;
            !token.single_word && !token.lstrip && !text.is_empty() && text.trim().len() == text.len()
        };
        let mut tokens: HashSet<String> =
            raw.iter().filter(plain).map(|token| token.content.clone()).collect();
        let parts = |text: &str| text.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
        let ends: HashSet<&str> =
            raw.iter().flat_map(|t| parts(&t.content).into_iter().map(|at| &t.content[at..])).collect();
        tokens.retain(|token| {
            let begins_as_one_ends = parts(token).into_iter().any(|at| ends.contains(&token[..at]));
            !begins_as_one_ends && !ends.contains(token.as_str())
        });
        let all = Cuts::of(tokens);
        let held = |token: &&AddedToken| {
            let starts = token.content.char_indices().map(|(at, _)| &token.content[at..]);
            let others = starts.flat_map(|text| all.at(text)).filter(|found| *found != token.content);
            others.map(str::to_owned).collect::<Vec<_>>()
        };
        let held: HashSet<String> = raw.iter().flat_map(held).collect();
        Cuts::of(all.tokens.into_iter().filter(|token| !held.contains(token)).collect())
    }

    fn of(tokens: HashSet<String>) -> Cuts {
        let mut first_chars: Vec<char> = tokens.iter().filter_map(|token| token.chars().next()).collect();
        let mut lengths: Vec<usize> = tokens.iter().map(String::len).collect();
        first_chars.sort();
        first_chars.dedup();
        lengths.sort();
        lengths.dedup();
        Cuts { tokens, first_chars, lengths }
    }

    /// The tokens that a text begins with.
    fn at<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let starts = self.lengths.iter().filter_map(move |&length| text.get(..length));
        starts.filter(|start| self.tokens.contains(*start))
    }

    /// The text, cut before every such token.
    fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let (mut pieces, mut start) = (vec![], 0);
        for (at, _) in text.match_indices(&self.first_chars[..]) {
            if at > start && self.at(&text[at..]).next().is_some() {
                pieces.push(&text[start..at]);
                start = at;
            }
        }
        pieces.push(&text[start..]);
        pieces
    }
}

/// Ids of pieces, those used last kept within a budget of bytes.
#[derive(Debug)]
pub struct Memo {
    budget: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<Arc<str>, Known>,
    /// Longest unused first.
    order: BTreeMap<u64, Arc<str>>,
    /// Counts uses.
    now: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Known {
    ids: Arc<[u32]>,
    used: u64,
}

impl Memo {
    pub fn new(budget: usize) -> Memo {
        Memo { budget, state: Mutex::default() }
    }

    /// The ids of a text, which `encode` gives for a piece.
    pub fn encode<E>(
        &self,
        text: &str,
        cuts: &Cuts,
        encode: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Vec<u32>, E> {
        let mut ids = vec![];
        for piece in cuts.pieces(text) {
            if piece.len() < SHORTEST {
                ids.extend(encode(piece)?);
            } else if let Some(known) = self.with(|state| state.find(piece)) {
                ids.extend_from_slice(&known);
            } else {
                let new = encode(piece)?;
                ids.extend_from_slice(&new);
                self.with(|state| state.insert(piece, new, self.budget));
            }
        }
        Ok(ids)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn find(&mut self, piece: &str) -> Option<Arc<[u32]>> {
        let known = self.known.get_mut(piece)?;
        self.now += 1;
        let text = self.order.remove(&known.used)?;
        known.used = self.now;
        self.order.insert(self.now, text);
        Some(known.ids.clone())
    }

    fn insert(&mut self, piece: &str, ids: Vec<u32>, budget: usize) {
        let bytes = size(piece, &ids);
        if bytes > budget / LARGEST || self.known.contains_key(piece) {
            return;
        }
        while self.bytes + bytes > budget
            && let Some((_, text)) = self.order.pop_first()
            && let Some(known) = self.known.remove(&text)
        {
            self.bytes -= size(&text, &known.ids);
        }
        self.now += 1;
        self.bytes += bytes;
        let text: Arc<str> = piece.into();
        self.order.insert(self.now, text.clone());
        self.known.insert(text, Known { ids: ids.into(), used: self.now });
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

    fn cuts(tokens: &[AddedToken]) -> Vec<String> {
        let mut cuts: Vec<String> = Cuts::new(tokens.iter()).tokens.into_iter().collect();
        cuts.sort();
        cuts
    }

    #[test]
    fn only_tokens_that_are_found_anywhere_are_cut_before() {
        assert_eq!(cuts(&["<a>", "<b>"].map(token)), ["<a>", "<b>"]);
        assert_eq!(cuts(&["<a>", "<a><b>"].map(token)), ["<a><b>"], "the longer one takes its place");
        assert_eq!(cuts(&["<b>", "<a><b>"].map(token)), ["<a><b>"]);
        assert_eq!(cuts(&["b", "abc"].map(token)), ["abc"]);
        assert_eq!(cuts(&["ab", "ca"].map(token)), ["ca"], "`cab` holds `ca`, and then no `ab`");
        assert_eq!(cuts(&["aba", "x"].map(token)), ["x"], "`ababa` holds only one");
        assert_eq!(cuts(&[token("<a>").lstrip(true), token("<b>").rstrip(true)]), ["<b>"]);
        assert_eq!(cuts(&[token("<a>").single_word(true), token(" <b>"), token("\n"), token("c")]), ["c"]);
        assert_eq!(cuts(&[token("<a>").normalized(true), token("<a><b>")]), ["<a><b>"]);
    }

    #[test]
    fn a_text_is_cut_before_every_token() {
        let cuts = Cuts::new(["<a>", "<bb>"].map(token).iter());
        for (text, pieces) in [
            ("", &[""] as &[&str]),
            ("<a>", &["<a>"]),
            ("x<a>y<bb><a><<a>", &["x", "<a>y", "<bb>", "<a><", "<a>"]),
            ("<ä<bb", &["<ä<bb"]),
        ] {
            assert_eq!(cuts.pieces(text), pieces);
        }
    }

    #[test]
    fn what_was_used_last_stays_within_the_budget() {
        let entry = size(&"x".repeat(100), &[0; 100]);
        let (memo, cuts) = (Memo::new(5 * entry), Cuts::new([].iter()));
        let calls = std::cell::Cell::new(0);
        let ask = |letter: &str, length| {
            calls.set(0);
            let encode = |text: &str| {
                calls.set(calls.get() + 1);
                Ok::<_, ()>(text.bytes().map(u32::from).collect())
            };
            let text = letter.repeat(length);
            assert_eq!(memo.encode(&text, &cuts, encode), encode(&text));
            calls.get() == 1
        };
        assert!(["a", "b", "c", "d", "e"].iter().all(|letter| !ask(letter, 100)));
        assert!(["a", "c", "d", "e"].iter().all(|letter| ask(letter, 100)));
        assert!(!ask("f", 100), "takes the place of b");
        assert!(ask("a", 100) && !ask("b", 100), "which takes that of c");
        assert!(!ask("c", 100));
        assert!(!ask("g", 200) && !ask("g", 200), "too large");
        assert!(!ask("h", 63) && !ask("h", 63), "too small");
        memo.with(|state| {
            let bytes: usize = state.known.iter().map(|(text, known)| size(text, &known.ids)).sum();
            assert_eq!((state.bytes, state.known.len(), state.order.len()), (bytes, 5, 5));
            assert!(bytes <= 5 * entry);
        });
    }
}
