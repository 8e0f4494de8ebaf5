//! Bounds how much the rules of a tokenizer.json can lengthen a text, without applying them.
//!
//! Normalizers and decoders apply one rule after the other, and each can lengthen the text: thirty
//! rules that double it turn a word into gigabytes.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::{Error, Result};

/// Maximum bytes of a token, added token or affix; published ones have a few hundred.
const MAX_TOKEN: usize = 8 << 10;
/// Maximum factor by which rules may multiply the bytes of a text; that of NFKC alone is 11.
const MAX_FACTOR: u64 = 1 << 10;
/// Maximum bytes that rules may add to each part of a text.
const MAX_ADDED: u64 = 4 << 10;
/// Maximum special tokens around a text.
const MAX_SPECIAL: usize = 64;
/// Published tokenizers stay within this bound; within it, texts of any length are encoded.
const ORDINARY: Expansion = Expansion { factor: 64, added: 256 };
/// Maximum bytes of a normalized text beyond that bound.
const MAX_NORMALIZED: u64 = 64 << 20;

/// Bound on the lengthening of a text: a factor, and bytes added to each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expansion {
    factor: u64,
    added: u64,
}

/// The fields of tokenizer.json that determine the bound.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Longest,
    #[serde(default)]
    model: Longest,
}

impl Expansion {
    const NONE: Expansion = Expansion { factor: 1, added: 0 };

    /// The bound of a tokenizer.json's normalizer.
    ///
    /// # Errors
    /// Invalid JSON, or rules that lengthen a text more than any tokenizer needs.
    pub(crate) fn from_tokenizer_json(json: &[u8]) -> Result<Expansion> {
        // The usual cause of invalid JSON is a truncated download.
        let parts: TokenizerJson =
            serde_json::from_slice(json).map_err(|e| Error::Tokenizer(e.to_string()))?;
        let longest = parts.added_tokens.0.max(parts.model.0);
        // A merge is two tokens and a space.
        if longest > 2 * MAX_TOKEN {
            return Err(Error::Tokenizer(format!("it has a token of {longest} bytes")));
        }
        check_post_processor(&parts.post_processor)?;
        check_rules("decoder", &parts.decoder)?;
        check_rules("normalizer", &parts.normalizer)
    }

    /// Whether to encode the text: always within [`ORDINARY`], else if the normalized text stays
    /// within the limit.
    pub(crate) fn allows(self, text: &str) -> bool {
        let length = text.len() as u64 + 1;
        let most = length.saturating_mul(self.factor).saturating_add(length.saturating_mul(self.added));
        (self.factor <= ORDINARY.factor && self.added <= ORDINARY.added) || most <= MAX_NORMALIZED
    }

    fn then(self, next: Expansion) -> Expansion {
        Expansion {
            factor: self.factor.saturating_mul(next.factor),
            added: self.added.saturating_mul(next.factor).saturating_add(next.added),
        }
    }
}

/// The bound of a whole normalizer or decoder.
fn check_rules(part: &str, rule: &Value) -> Result<Expansion> {
    let bound = expansion(rule)?;
    if bound.factor > MAX_FACTOR || bound.added > MAX_ADDED {
        return Err(Error::Tokenizer(format!("its {part} can lengthen texts too much")));
    }
    Ok(bound)
}

fn expansion(rule: &Value) -> Result<Expansion> {
    let length = |key: &str| rule[key].as_str().map_or(0, str::len) as u64;
    let times = |factor| Ok(Expansion { factor, added: 0 });
    match rule["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let all = rule["normalizers"].as_array().or(rule["decoders"].as_array());
            all.into_iter().flatten().try_fold(Expansion::NONE, |sum, rule| Ok(sum.then(expansion(rule)?)))
        }
        "Prepend" => Ok(Expansion { factor: 1, added: length("prepend") }),
        "Replace" => {
            let new = length("content");
            match rule["pattern"]["String"].as_str() {
                Some(old) => times(new.div_ceil((old.len() as u64).max(1)).max(1)),
                // A regex can match the empty string before every character.
                None => times(new + 1),
            }
        }
        "Precompiled" => {
            times(longest_replacement(rule["precompiled_charsmap"].as_str().unwrap_or_default())?)
        }
        "NFKC" | "NFKD" => times(11),
        "NFC" | "NFD" | "Lowercase" | "BertNormalizer" => times(3),
        "ByteLevel" | "Metaspace" => Ok(Expansion { factor: 3, added: 3 }),
        "WordPiece" | "BPEDecoder" | "CTC" => {
            let affix = length("prefix").max(length("suffix")).max(length("pad_token"));
            Ok(Expansion { factor: 2, added: affix.max(length("word_delimiter_token")) })
        }
        _ => Ok(Expansion::NONE),
    }
}

/// Maximum bytes by which a charsmap replaces one byte: an entry ends with a zero byte and may be
/// read from its middle.
///
/// SentencePiece format: length of a table in bytes, the table, the entries.
fn longest_replacement(charsmap: &str) -> Result<u64> {
    let broken = || Error::Tokenizer("its precompiled_charsmap is broken".to_owned());
    let bytes = base64::decode(charsmap).map_err(|_| broken())?;
    let (length, rest) = bytes.split_first_chunk().ok_or_else(broken)?;
    // tokenizers allocates a table of this length before it reads it.
    let entries = rest.get(u32::from_le_bytes(*length) as usize..).ok_or_else(broken)?;
    let longest = entries.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    Ok(longest.max(1) as u64)
}

/// Rejects post-processors that add too many special tokens or repeat the text.
fn check_post_processor(processor: &Value) -> Result<()> {
    let mut lists = [&processor["processors"], &processor["single"]].into_iter().filter_map(Value::as_array);
    let long_list = lists.any(|list| list.len() > MAX_SPECIAL);
    let pieces = processor["single"].as_array().into_iter().flatten();
    let texts = pieces.filter(|piece| piece.get("Sequence").is_some()).count();
    let mut tokens = processor["special_tokens"].as_object().into_iter().flatten();
    let many_ids =
        tokens.any(|(_, token)| token["ids"].as_array().is_some_and(|ids| ids.len() > MAX_SPECIAL));
    if long_list || many_ids || texts > 1 {
        return Err(Error::Tokenizer("its post_processor adds too much to texts".to_owned()));
    }
    processor["processors"].as_array().into_iter().flatten().try_for_each(check_post_processor)
}

/// Length of the longest string in a JSON value; the value itself is not stored.
#[derive(Debug, Default, Clone, Copy)]
struct Longest(usize);

impl<'de> Deserialize<'de> for Longest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(LongestVisitor)
    }
}

struct LongestVisitor;

impl<'de> Visitor<'de> for LongestVisitor {
    type Value = Longest;

    fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Longest, E> {
        Ok(Longest(text.len()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Longest, A::Error> {
        let mut longest = 0;
        while let Some(Longest(item)) = items.next_element()? {
            longest = longest.max(item);
        }
        Ok(Longest(longest))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Longest, A::Error> {
        let mut longest = 0;
        while let Some((Longest(key), Longest(value))) = entries.next_entry()? {
            longest = longest.max(key).max(value);
        }
        Ok(Longest(longest))
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<Longest, E> {
        Ok(Longest(0))
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Longest, E> {
        Ok(Longest(0))
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Longest, E> {
        Ok(Longest(0))
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Longest, E> {
        Ok(Longest(0))
    }

    fn visit_unit<E>(self) -> std::result::Result<Longest, E> {
        Ok(Longest(0))
    }
}
