//! Incremental detokenization: never emits part of a character. Stop strings are in `stop`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::Tokenizer;

/// Turns a stream of token ids into text as soon as it cannot change any more.
///
/// Invariant: the results of all `push` calls and of `finish`, joined, equal [`Tokenizer::decode`].
/// The cost of a push does not depend on the length of the text.
///
/// Invalid bytes become U+FFFD as in [`String::from_utf8_lossy`]. (For SentencePiece models,
/// transformers replaces all bytes of a run if one is invalid; here valid characters are kept.)
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    state: DecodeState,
}

impl Detokenizer {
    /// A detokenizer at the start of a text. With `skip_special_tokens`, special tokens yield no
    /// text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        let state = DecodeState::new(&tokenizer, skip_special_tokens);
        Self { tokenizer, state }
    }

    /// Exempts a token from `skip_special_tokens`.
    pub fn keep(&mut self, id: u32) {
        self.state.shown.insert(id);
    }

    /// Appends a token and returns the new text that is final; empty within a character.
    pub fn push(&mut self, id: u32) -> String {
        self.state.push(&self.tokenizer, id)
    }

    /// Returns the rest; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.state.finish(&self.tokenizer)
    }
}

/// Offset of each token in the detokenized text, in characters.
#[derive(Debug)]
pub struct TextOffsets {
    tokenizer: Arc<Tokenizer>,
    /// Number of complete characters.
    characters: usize,
    /// The bytes of an incomplete character.
    pending: Vec<u8>,
    strip_start: Option<(char, usize)>,
}

impl TextOffsets {
    /// Starts at an offset of `characters`.
    pub fn new(tokenizer: Arc<Tokenizer>, characters: usize) -> Self {
        let strip_start = tokenizer.token_bytes_rules().and_then(|p| p.strip_start);
        Self { tokenizer, characters, pending: Vec::new(), strip_start }
    }

    /// The offset of the next token; a token that continues a character gets the offset after that
    /// character. `shown` says whether a special token appears in the text.
    pub fn push(&mut self, id: u32, shown: bool) -> usize {
        let offset = self.characters + usize::from(!self.pending.is_empty());
        if shown || !self.tokenizer.is_special(id) {
            self.pending.extend(self.tokenizer.token_bytes(id));
        }
        let mut end = 0;
        while let Some((character, length)) = first_character(&self.pending[end..]) {
            end += length;
            if !self.is_stripped(character) {
                self.characters += 1;
            }
        }
        self.pending.drain(..end);
        offset
    }

    fn is_stripped(&mut self, character: char) -> bool {
        let Some((strip, left)) = self.strip_start else { return false };
        let strips = character == strip && left > 0;
        self.strip_start = if strips { Some((strip, left - 1)) } else { None };
        strips
    }
}

/// The first character, U+FFFD if it is invalid, and its length; `None` if more bytes may complete
/// it.
fn first_character(bytes: &[u8]) -> Option<(char, usize)> {
    let start = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(error) => return error.error_len().map(|length| (char::REPLACEMENT_CHARACTER, length)),
    };
    valid.chars().next().map(|character| (character, character.len_utf8()))
}

/// State of a detokenizer, without its tokenizer.
#[derive(Debug)]
pub(crate) struct DecodeState {
    skip_special_tokens: bool,
    /// Special tokens that are not skipped.
    shown: HashSet<u32>,
    /// The bytes of an incomplete character.
    pending: Vec<u8>,
    /// The prefix still to be stripped.
    strip_start: Option<(char, usize)>,
    /// All ids, if the decoder works only on whole texts; then text is returned at the end.
    whole: Vec<u32>,
}

impl DecodeState {
    pub(crate) fn new(tokenizer: &Tokenizer, skip_special_tokens: bool) -> Self {
        let strip_start = tokenizer.token_bytes_rules().and_then(|p| p.strip_start);
        Self {
            skip_special_tokens,
            shown: HashSet::new(),
            pending: Vec::new(),
            strip_start,
            whole: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.skip_special_tokens && tokenizer.is_special(id) && !self.shown.contains(&id) {
            return String::new();
        }
        if tokenizer.token_bytes_rules().is_none() {
            self.whole.push(id);
            return String::new();
        }
        self.pending.extend(tokenizer.token_bytes(id));
        let text = take_characters(&mut self.pending);
        self.strip(text)
    }

    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        if !self.whole.is_empty() {
            return tokenizer.decode_whole(&std::mem::take(&mut self.whole));
        }
        let rest = std::mem::take(&mut self.pending);
        self.strip(String::from_utf8_lossy(&rest).into_owned())
    }

    /// Strips the prefix that SentencePiece adds.
    fn strip(&mut self, text: String) -> String {
        let Some((strip, mut left)) = self.strip_start else { return text };
        let mut rest = text.as_str();
        while left > 0 {
            match rest.strip_prefix(strip) {
                Some(shorter) => (rest, left) = (shorter, left - 1),
                None if rest.is_empty() => break,
                None => left = 0,
            }
        }
        self.strip_start = (left > 0).then_some((strip, left));
        rest.to_owned()
    }
}

/// Removes all complete characters from `bytes`; invalid bytes become U+FFFD.
fn take_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut start = 0;
    loop {
        match std::str::from_utf8(&bytes[start..]) {
            Ok(rest) => {
                text.push_str(rest);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let valid = start + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[start..valid]));
                let Some(invalid) = error.error_len() else {
                    bytes.drain(..valid);
                    return text;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                start = valid + invalid;
            }
        }
    }
}
