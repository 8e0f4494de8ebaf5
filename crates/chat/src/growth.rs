//! How much longer the rules of a tokenizer.json may make a text, found without applying them. Knows no tokens.
//!
//! The rules of normalisers and decoders rewrite a text one after the other, and each may make it longer: thirty that double it
//! make gigabytes of a word.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::{Error, Result};

/// The longest token, added token or affix, in bytes. Published ones have a few hundred.
const MAX_TOKEN: usize = 8 << 10;
/// The most that rules may multiply the bytes of a text by; NFKC alone can make eleven of one.
const MAX_FACTOR: u64 = 1 << 10;
/// The most bytes that rules may add to each piece of a text.
const MAX_ADDED: u64 = 4 << 10;
/// The most special tokens around a text.
const MAX_AROUND: usize = 64;
/// Up to this growth, which published tokenizers have, texts of any length are encoded.
const ORDINARY: Growth = Growth { factor: 64, added: 256 };
/// The most bytes that a text may become where growth is beyond that.
const MAX_NORMALIZED: u64 = 64 << 20;

/// By how much rules may make a text longer: so many times, and so many bytes for each piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Growth {
    factor: u64,
    added: u64,
}

/// What is read of a tokenizer.json here.
#[derive(Deserialize)]
struct Parts {
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

impl Growth {
    const NONE: Growth = Growth { factor: 1, added: 0 };

    /// That of a tokenizer.json's normaliser.
    ///
    /// # Errors
    /// It is no JSON, or some of its rules make more of a text than any tokenizer needs.
    pub fn of_tokenizer(json: &[u8]) -> Result<Growth> {
        // A download cut short is the usual damage.
        let parts: Parts = serde_json::from_slice(json).map_err(|e| Error::Tokenizer(e.to_string()))?;
        let longest = parts.added_tokens.0.max(parts.model.0);
        // Merges are two tokens with a space.
        if longest > 2 * MAX_TOKEN {
            return Err(Error::Tokenizer(format!("it has a token of {longest} bytes")));
        }
        check_around(&parts.post_processor)?;
        rules("decoder", &parts.decoder)?;
        rules("normalizer", &parts.normalizer)
    }

    /// Whether a text can be encoded without becoming too long on the way.
    pub fn allows(self, text: &str) -> bool {
        let length = text.len() as u64 + 1;
        let most = length.saturating_mul(self.factor).saturating_add(length.saturating_mul(self.added));
        (self.factor <= ORDINARY.factor && self.added <= ORDINARY.added) || most <= MAX_NORMALIZED
    }

    fn then(self, next: Growth) -> Growth {
        Growth {
            factor: self.factor.saturating_mul(next.factor),
            added: self.added.saturating_mul(next.factor).saturating_add(next.added),
        }
    }
}

/// The growth of a normaliser or decoder as a whole.
fn rules(part: &str, rule: &Value) -> Result<Growth> {
    let growth = growth(rule)?;
    if growth.factor > MAX_FACTOR || growth.added > MAX_ADDED {
        return Err(Error::Tokenizer(format!("its {part} would make texts too much longer")));
    }
    Ok(growth)
}

fn growth(rule: &Value) -> Result<Growth> {
    let length = |key: &str| rule[key].as_str().map_or(0, str::len) as u64;
    let times = |factor| Ok(Growth { factor, added: 0 });
    match rule["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            let all = rule["normalizers"].as_array().or(rule["decoders"].as_array());
            all.into_iter().flatten().try_fold(Growth::NONE, |sum, rule| Ok(sum.then(growth(rule)?)))
        }
        "Prepend" => Ok(Growth { factor: 1, added: length("prepend") }),
        "Replace" => {
            let new = length("content");
            match rule["pattern"]["String"].as_str() {
                Some(old) => times(new.div_ceil((old.len() as u64).max(1)).max(1)),
                // It may match nothing, before every character.
                None => times(new + 1),
            }
        }
        "Precompiled" => {
            times(longest_replacement(rule["precompiled_charsmap"].as_str().unwrap_or_default())?)
        }
        "NFKC" | "NFKD" => times(11),
        "NFC" | "NFD" | "Lowercase" | "BertNormalizer" => times(3),
        "ByteLevel" | "Metaspace" => Ok(Growth { factor: 3, added: 3 }),
        "WordPiece" | "BPEDecoder" | "CTC" => {
            let affix = length("prefix").max(length("suffix")).max(length("pad_token"));
            Ok(Growth { factor: 2, added: affix.max(length("word_delimiter_token")) })
        }
        _ => Ok(Growth::NONE),
    }
}

/// The most bytes that a charsmap has in place of one: an entry ends with a zero byte, and may be read from its middle.
///
/// The format is that of SentencePiece: the length of a table in bytes, the table, the entries.
fn longest_replacement(charsmap: &str) -> Result<u64> {
    let broken = || Error::Tokenizer("its precompiled_charsmap is broken".to_owned());
    let bytes = base64::decode(charsmap).map_err(|_| broken())?;
    let (length, rest) = bytes.split_first_chunk().ok_or_else(broken)?;
    // Memory is taken for a table of this length before it is read.
    let entries = rest.get(u32::from_le_bytes(*length) as usize..).ok_or_else(broken)?;
    let longest = entries.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    Ok(longest.max(1) as u64)
}

/// Refuses what puts more around a text than special tokens, or the text more than once.
fn check_around(processor: &Value) -> Result<()> {
    let mut lists = [&processor["processors"], &processor["single"]].into_iter().filter_map(Value::as_array);
    let many = lists.any(|list| list.len() > MAX_AROUND);
    let pieces = processor["single"].as_array().into_iter().flatten();
    let texts = pieces.filter(|piece| piece.get("Sequence").is_some()).count();
    let mut tokens = processor["special_tokens"].as_object().into_iter().flatten();
    let many_ids = tokens.any(|(_, token)| token["ids"].as_array().is_some_and(|ids| ids.len() > MAX_AROUND));
    if many || many_ids || texts > 1 {
        return Err(Error::Tokenizer("its post_processor would add too much to texts".to_owned()));
    }
    processor["processors"].as_array().into_iter().flatten().try_for_each(check_around)
}

/// The length of the longest string anywhere in a JSON value, which is not kept.
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
