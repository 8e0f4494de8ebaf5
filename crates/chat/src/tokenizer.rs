//! Tokenizer of a checkpoint: text to ids and ids to bytes. Streaming is in `detokenize`.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::error::{parse_json, read};
use crate::expansion::Expansion;
use crate::token_bytes::TokenBytes;
use crate::token_cache::{SplitPoints, TokenCache};
use crate::{Error, Result};

/// Maximum bytes of cached token ids.
const TOKEN_CACHE_BYTES: usize = 32 << 20;

/// A checkpoint's `tokenizer.json`, with `tokenizer_config.json`. Share it in an `Arc`.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    expansion: Expansion,
    /// `None` if the decoder works only on whole texts.
    token_bytes: Option<TokenBytes>,
    special_ids: HashSet<u32>,
    special_tokens: Map<String, Value>,
    longest_token: OnceLock<usize>,
    split_points: OnceLock<SplitPoints>,
    token_cache: TokenCache,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and `tokenizer_config.json` if it exists, from a checkpoint's
    /// folder.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let config = dir.join("tokenizer_config.json");
        let config = config.exists().then(|| read(&config, files::SETTINGS)).transpose()?;
        Self::from_bytes(&read(&dir.join("tokenizer.json"), files::TOKENIZER)?, config.as_deref())
    }

    /// Builds a tokenizer from the contents of `tokenizer.json` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// A file is invalid.
    pub fn from_bytes(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self> {
        // The tokenizers crate panics on invalid JSON.
        let expansion = Expansion::from_tokenizer_json(tokenizer_json)?;
        let mut inner = guarded(Error::Tokenizer, || tokenizers::Tokenizer::from_bytes(tokenizer_json))?;
        // Files saved by trainers may pad and truncate; prompts must keep their length.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::Tokenizer(e.to_string()))?;
        let decoder =
            serde_json::to_value(inner.get_decoder()).map_err(|e| Error::Tokenizer(e.to_string()))?;
        let special_ids =
            inner.get_added_tokens_decoder().iter().filter(|(_, t)| t.special).map(|(id, _)| *id).collect();
        let config =
            tokenizer_config.map(|b| parse_json("tokenizer_config.json", b)).transpose()?.unwrap_or_default();
        Ok(Self {
            inner,
            expansion,
            token_bytes: TokenBytes::from_decoder(&decoder),
            special_ids,
            special_tokens: special_tokens(&config),
            longest_token: OnceLock::new(),
            split_points: OnceLock::new(),
            token_cache: TokenCache::new(TOKEN_CACHE_BYTES),
        })
    }

    /// Token ids of a text. Rendered prompts already contain their special tokens: pass `false`.
    ///
    /// # Errors
    /// [`Error::Encode`] if the text cannot be tokenized.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        if !self.expansion.allows(text) {
            return Err(Error::Encode(format!(
                "normalizing its {} bytes would take too much memory",
                text.len()
            )));
        }
        let encoding = guarded(Error::Encode, || self.inner.encode_fast(text, add_special_tokens))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of a rendered prompt: those of [`Tokenizer::encode`] without added special tokens,
    /// but faster if parts of it, such as earlier turns, are cached.
    ///
    /// # Errors
    /// [`Error::Encode`] if the text cannot be tokenized.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let split_points = self
            .split_points
            .get_or_init(|| SplitPoints::new(self.inner.get_added_tokens_decoder().values()));
        self.token_cache.encode(text, split_points, |part| self.encode(part, false))
    }

    /// The text of `ids`, as a [`crate::Detokenizer`] returns it.
    ///
    /// Unknown ids are skipped. Spaces are not cleaned up.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        let mut stream = crate::detokenize::DecodeState::new(self, skip_special_tokens);
        let mut text: String = ids.iter().map(|&id| stream.push(self, id)).collect();
        text.push_str(&stream.finish(self));
        Ok(text)
    }

    /// The id of a token as spelled in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as spelled in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// All tokens, including added ones, as spelled in the vocabulary, sorted by id.
    pub fn vocabulary(&self) -> Vec<(u32, String)> {
        let mut tokens: Vec<(u32, String)> =
            self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        tokens.sort_unstable();
        tokens
    }

    /// The bytes of one token, which may be partial characters; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(token) = self.id_to_token(id) else { return Vec::new() };
        match &self.token_bytes {
            Some(rules) => rules.bytes(&token),
            None => token.into_bytes(),
        }
    }

    /// The most bytes that `limit` tokens can have, if a text has more, without encoding it.
    /// Assumes that normalization at most halves a text.
    pub fn exceeded_bytes(&self, text: &str, limit: usize) -> Option<usize> {
        // Finding the longest token is slow, and most prompts are short.
        if text.len() / 16 <= limit {
            return None;
        }
        let longest = self.longest_token.get_or_init(|| {
            self.inner.get_vocab(true).into_keys().map(|token| token.len()).max().unwrap_or(1)
        });
        let most = limit.saturating_mul(2 * longest.max(&1));
        (text.len() > most).then_some(most)
    }

    /// Whether a token is a special token, which decoding skips by default.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Number of tokens, added ones included. A model's embedding table may be padded beyond this.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The text of the token that ends a reply, by tokenizer_config.json.
    pub fn eos_token(&self) -> Option<&str> {
        self.special_tokens.get("eos_token")?.as_str()
    }

    /// The text of the token that starts a text, by tokenizer_config.json.
    pub fn bos_token(&self) -> Option<&str> {
        self.special_tokens.get("bos_token")?.as_str()
    }

    pub(crate) fn token_bytes_rules(&self) -> Option<&TokenBytes> {
        self.token_bytes.as_ref()
    }

    /// Decodes with the tokenizers crate, for decoders that only work on whole texts.
    pub(crate) fn decode_whole(&self, ids: &[u32]) -> String {
        guarded(Error::Encode, || self.inner.decode(ids, false)).unwrap_or_default()
    }
}

/// Texts of the special tokens in a tokenizer_config.json by name, as templates use them.
pub(crate) fn special_tokens(config: &Value) -> Map<String, Value> {
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(Value::from);
    let entries = config.as_object().into_iter().flatten();
    entries
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), text(value)?)))
        .collect()
}

/// Calls the tokenizers crate, which panics on some invalid files, and turns panics into errors.
fn guarded<T, E: std::fmt::Display>(
    error: fn(String) -> Error,
    call: impl FnOnce() -> std::result::Result<T, E>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| error(e.to_string())),
        Err(_) => Err(error("its parts contradict each other".to_owned())),
    }
}
