//! The tokenizer of a checkpoint: text to ids and ids to bytes. Streaming is in `detokenize`.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::error::{parse_json, read};
use crate::growth::Growth;
use crate::memo::{Cuts, Memo};
use crate::pieces::Pieces;
use crate::{Error, Result};

/// Most memory that remembered pieces of prompts take, in bytes.
const MEMO_BUDGET: usize = 32 << 20;

/// A checkpoint's `tokenizer.json` and what `tokenizer_config.json` says about it. Share it in an `Arc`.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    growth: Growth,
    /// `None` when the decoder cannot be applied token by token.
    pieces: Option<Pieces>,
    special_ids: HashSet<u32>,
    special_tokens: Map<String, Value>,
    longest_token: OnceLock<usize>,
    cuts: OnceLock<Cuts>,
    memo: Memo,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and `tokenizer_config.json` if it is there, from a checkpoint's folder.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let config = dir.join("tokenizer_config.json");
        let config = config.exists().then(|| read(&config, files::SETTINGS)).transpose()?;
        Self::from_bytes(&read(&dir.join("tokenizer.json"), files::TOKENIZER)?, config.as_deref())
    }

    /// Builds a tokenizer from the contents of `tokenizer.json` and `tokenizer_config.json`.
    pub fn from_bytes(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self> {
        // The crate below would panic on broken JSON.
        let growth = Growth::of_tokenizer(tokenizer_json)?;
        let mut inner = guarded(Error::Tokenizer, || tokenizers::Tokenizer::from_bytes(tokenizer_json))?;
        // Files saved after training may carry the trainer's padding and truncation; a prompt must keep its length.
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
            growth,
            pieces: Pieces::from_decoder(&decoder),
            special_ids,
            special_tokens: special_tokens(&config),
            longest_token: OnceLock::new(),
            cuts: OnceLock::new(),
            memo: Memo::new(MEMO_BUDGET),
        })
    }

    /// Token ids of a text. A prompt rendered by a template already holds its special tokens: pass `false` for it.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        if !self.growth.allows(text) {
            return Err(Error::Encode(format!("its {} bytes would become far more on the way", text.len())));
        }
        let encoding = guarded(Error::Encode, || self.inner.encode_fast(text, add_special_tokens))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Token ids of a prompt that a template has rendered: those of [`Tokenizer::encode`] without special tokens added, faster
    /// where parts of it, such as the turns of a conversation, were seen before.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let cuts = self.cuts.get_or_init(|| Cuts::new(self.inner.get_added_tokens_decoder().values()));
        self.memo.encode(text, cuts, |piece| self.encode(piece, false))
    }

    /// The text of a whole list of ids: what a [`crate::Detokenizer`] gives for the same ids, in one piece.
    ///
    /// Unknown ids are skipped. Spaces are kept as they are (no "clean up").
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        let mut stream = crate::detokenize::Bytes::new(self, skip_special_tokens);
        let mut text: String = ids.iter().map(|&id| stream.push(self, id)).collect();
        text.push_str(&stream.finish(self));
        Ok(text)
    }

    /// The id of a token as it is written in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as it is written in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Every token as it is written in the vocabulary, added ones included, by id.
    pub fn vocabulary(&self) -> Vec<(u32, String)> {
        let mut tokens: Vec<(u32, String)> =
            self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        tokens.sort_unstable();
        tokens
    }

    /// The raw bytes of one token, which need not be whole characters; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(token) = self.id_to_token(id) else { return Vec::new() };
        match &self.pieces {
            Some(pieces) => pieces.bytes(&token),
            None => token.into_bytes(),
        }
    }

    /// Whether a text is certain to have more than `limit` tokens, without encoding it: no token stands for more
    /// bytes than the longest one has, and a normaliser may halve a text but hardly more.
    pub fn surely_exceeds(&self, text: &str, limit: usize) -> bool {
        // Finding the longest token takes a while, and most prompts are short.
        if text.len() / 16 <= limit {
            return false;
        }
        let longest = self.longest_token.get_or_init(|| {
            self.inner.get_vocab(true).into_keys().map(|token| token.len()).max().unwrap_or(1)
        });
        text.len() / 2 / longest.max(&1) > limit
    }

    /// Whether a token is a control token, which decoding skips by default.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// How many tokens there are, added ones included. A model's own table may be padded beyond this.
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

    pub(crate) fn pieces(&self) -> Option<&Pieces> {
        self.pieces.as_ref()
    }

    /// Decodes with the tokenizers crate, for decoders that only work on whole texts.
    pub(crate) fn decode_whole(&self, ids: &[u32]) -> String {
        guarded(Error::Encode, || self.inner.decode(ids, false)).unwrap_or_default()
    }
}

/// The special tokens of a tokenizer_config.json by name, each as its text, as templates see them.
pub(crate) fn special_tokens(config: &Value) -> Map<String, Value> {
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(Value::from);
    let entries = config.as_object().into_iter().flatten();
    entries
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), text(value)?)))
        .collect()
}

/// Calls into the tokenizers crate, which panics on some broken files: one bad checkpoint must not end the process.
fn guarded<T, E: std::fmt::Display>(
    error: fn(String) -> Error,
    call: impl FnOnce() -> std::result::Result<T, E>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| error(e.to_string())),
        Err(_) => Err(error("its parts contradict each other".to_owned())),
    }
}
