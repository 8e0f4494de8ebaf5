//! Token ids to text, one at a time, never emitting part of a character. Stop strings are in `stop`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::Tokenizer;

/// Turns a stream of token ids into text as soon as it is certain.
///
/// Invariant: the pieces from `push`, then `finish`, joined, are [`Tokenizer::decode`] of the ids. Each push costs the
/// same, however long the text.
///
/// Bytes that can never become a character turn into U+FFFD as [`String::from_utf8_lossy`] does it. (transformers, for
/// SentencePiece models, replaces every byte of a run when one is wrong; here the good characters are kept.)
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    bytes: Bytes,
}

impl Detokenizer {
    /// A detokeniser at the start of a text. With `skip_special_tokens`, control tokens give no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        let bytes = Bytes::new(&tokenizer, skip_special_tokens);
        Self { tokenizer, bytes }
    }

    /// Gives this token's text even when special tokens are skipped.
    pub fn keep(&mut self, id: u32) {
        self.bytes.kept.insert(id);
    }

    /// The text that is certain now that `id` is known; often empty in the middle of a character.
    pub fn push(&mut self, id: u32) -> String {
        self.bytes.push(&self.tokenizer, id)
    }

    /// The rest: an incomplete character at the end becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.bytes.finish(&self.tokenizer)
    }
}

/// Where the text of each token begins, in characters of the text that a [`Detokenizer`] gives for all of them.
#[derive(Debug)]
pub struct TextOffsets {
    tokenizer: Arc<Tokenizer>,
    /// Whole characters so far.
    characters: usize,
    /// The bytes of an incomplete character.
    pending: Vec<u8>,
    strip_start: Option<(char, usize)>,
}

impl TextOffsets {
    /// At the start of a text that stands behind `characters` others.
    pub fn new(tokenizer: Arc<Tokenizer>, characters: usize) -> Self {
        let strip_start = tokenizer.pieces().and_then(|p| p.strip_start);
        Self { tokenizer, characters, pending: Vec::new(), strip_start }
    }

    /// Where the next token's text begins: one that goes on with a character stands behind that. `shown` says whether the text
    /// holds it, if it is a control token.
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

/// The first character of some bytes, U+FFFD for hopeless ones, and its length; `None` if more bytes may complete it.
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

/// The state of a detokeniser, apart from its tokenizer.
#[derive(Debug)]
pub(crate) struct Bytes {
    skip_special_tokens: bool,
    kept: HashSet<u32>,
    /// The bytes of an incomplete character.
    pending: Vec<u8>,
    /// What is still to be cut from the start of the text.
    strip_start: Option<(char, usize)>,
    /// All ids, when the decoder works on whole texts only: then text comes at the end.
    whole: Vec<u32>,
}

impl Bytes {
    pub fn new(tokenizer: &Tokenizer, skip_special_tokens: bool) -> Self {
        let strip_start = tokenizer.pieces().and_then(|p| p.strip_start);
        Self {
            skip_special_tokens,
            kept: HashSet::new(),
            pending: Vec::new(),
            strip_start,
            whole: Vec::new(),
        }
    }

    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.skip_special_tokens && tokenizer.is_special(id) && !self.kept.contains(&id) {
            return String::new();
        }
        if tokenizer.pieces().is_none() {
            self.whole.push(id);
            return String::new();
        }
        self.pending.extend(tokenizer.token_bytes(id));
        let text = take_characters(&mut self.pending);
        self.strip(text)
    }

    pub fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        if !self.whole.is_empty() {
            return tokenizer.decode_whole(&std::mem::take(&mut self.whole));
        }
        let rest = std::mem::take(&mut self.pending);
        self.strip(String::from_utf8_lossy(&rest).into_owned())
    }

    /// Cuts what SentencePiece added at the start of the text.
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

/// Takes everything from `bytes` that no later byte can change: whole characters, and U+FFFD for hopeless bytes.
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
                let Some(broken) = error.error_len() else {
                    bytes.drain(..valid);
                    return text;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                start = valid + broken;
            }
        }
    }
}
