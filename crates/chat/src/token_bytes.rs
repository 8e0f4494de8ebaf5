//! Bytes of single tokens, from the `decoder` of tokenizer.json. Knows nothing of sequences.

use std::collections::HashMap;

use serde_json::Value;

/// The decoder of tokenizer.json as rules for single tokens, plus the prefix stripped from whole
/// texts.
///
/// Covers byte-level BPE and SentencePiece decoders.
#[derive(Debug, Default)]
pub(crate) struct TokenBytes {
    /// GPT-2's characters for bytes, if the decoder is byte-level.
    byte_level: Option<HashMap<char, u8>>,
    /// Whether tokens such as `<0x0A>` are single bytes.
    byte_fallback: bool,
    /// Literal replacements in order, such as `▁` by a space.
    replacements: Vec<(String, String)>,
    /// Up to this number of this character are stripped from the start of a text.
    pub strip_start: Option<(char, usize)>,
}

impl TokenBytes {
    /// Parses a decoder; `None` if it has a rule that needs whole texts.
    pub(crate) fn from_decoder(decoder: &Value) -> Option<Self> {
        let mut rules = Self::default();
        rules.add(decoder).then_some(rules)
    }

    /// Adds one decoder of a sequence; `false` if it is not supported.
    fn add(&mut self, decoder: &Value) -> bool {
        let text = |key: &str| decoder[key].as_str().unwrap_or_default();
        let count = |key: &str| decoder[key].as_u64().unwrap_or(0) as usize;
        match text("type") {
            "Sequence" => decoder["decoders"].as_array().is_some_and(|all| all.iter().all(|d| self.add(d))),
            "ByteLevel" => {
                self.byte_level = Some(byte_level_alphabet());
                true
            }
            "ByteFallback" => {
                self.byte_fallback = true;
                true
            }
            "Fuse" => true,
            "Replace" => {
                let Some(pattern) = decoder["pattern"]["String"].as_str() else { return false };
                self.replacements.push((pattern.to_owned(), text("content").to_owned()));
                !pattern.is_empty()
            }
            "Metaspace" => {
                self.replacements.push((text("replacement").to_owned(), " ".to_owned()));
                self.strip_start = (text("prepend_scheme") != "never").then_some((' ', 1));
                !text("replacement").is_empty()
            }
            "Strip" => {
                self.strip_start = text("content").chars().next().map(|c| (c, count("start")));
                count("stop") == 0
            }
            _ => false,
        }
    }

    /// The bytes of a token, which may be partial characters.
    pub(crate) fn bytes(&self, token: &str) -> Vec<u8> {
        if let Some(alphabet) = &self.byte_level {
            let mapped: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
            return mapped.unwrap_or_else(|| token.as_bytes().to_vec());
        }
        if let Some(byte) = self.byte_fallback.then(|| byte_token(token)).flatten() {
            return vec![byte];
        }
        let mut text = token.to_owned();
        for (from, to) in &self.replacements {
            text = text.replace(from, to);
        }
        text.into_bytes()
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// GPT-2's alphabet: printable Latin-1 bytes map to themselves, the others to characters from
/// U+0100.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|&b| !printable(b)).zip('\u{100}'..).map(|(b, c)| (c, b));
    (0..=255u8).filter(|&b| printable(b)).map(|b| (char::from(b), b)).chain(others).collect()
}
