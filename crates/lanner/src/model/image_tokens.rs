//! Image tokens of a prompt. A template prints one placeholder for an image; here each becomes the
//! tokens that stand for its image. Placeholders in texts of the request stay text.

#[cfg(test)]
mod tests;

use std::{borrow::Cow, ops::Range};

use chat::Tokenizer;
use serde_json::{Map, Value};
use vision::{Piece, Plan};

use super::{PromptError, vision::Vision};
use crate::sampling;

/// A rendered prompt's text with one image token for each run, and its tokens.
#[derive(Debug)]
pub(super) struct Expanded {
    pub(super) text: String,
    /// With one token for each run of image tokens.
    pub(super) short_ids: Vec<u32>,
    /// With all of them.
    pub(super) ids: Vec<u32>,
    /// Runs of image tokens in `ids`, of each image.
    pub(super) positions: Vec<Vec<Range<usize>>>,
    /// Position of each run in `short_ids`, and its length.
    runs: Vec<(usize, usize)>,
}

impl Expanded {
    pub(super) fn without_images(text: String, ids: Vec<u32>) -> Expanded {
        Expanded { text, short_ids: ids.clone(), ids, positions: vec![], runs: vec![] }
    }

    /// A position in `short_ids` as one in `ids`.
    pub(super) fn position(&self, at: usize) -> usize {
        let before = self.runs.iter().take_while(|(position, _)| *position < at);
        at + before.map(|(_, length)| length.saturating_sub(1)).sum::<usize>()
    }
}

/// Special tokens that a request must not write, and what replaces them while a template renders
/// its texts.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Literals(Vec<(String, String)>);

impl Literals {
    /// Finds which of the model's two tokens occur in the texts that a template gets.
    pub(super) fn find(
        vision: &Vision,
        messages: &[Value],
        tools: &[Value],
        kwargs: &Map<String, Value>,
    ) -> Self {
        let mut tokens = vec![vision.placeholder(), vision.image_token()];
        tokens.dedup();
        let texts = || messages.iter().chain(tools).chain(kwargs.values());
        tokens.retain(|token| texts().any(|text| contains(text, token)));
        // Random, so that no request can write it.
        let marker = |token: &str| (token.to_owned(), format!("literal-{:016x}-", sampling::random()));
        Literals(tokens.into_iter().map(marker).collect())
    }

    /// Replaces the tokens in texts, and in names of fields.
    pub(super) fn hide(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.hide_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(fields) => self.hide_fields(fields),
            _ => {}
        }
    }

    pub(super) fn hide_fields(&self, fields: &mut Map<String, Value>) {
        fields.values_mut().for_each(|value| self.hide(value));
        if fields.keys().any(|name| self.0.iter().any(|(token, _)| name.contains(token))) {
            let renamed = std::mem::take(fields).into_iter().map(|(mut name, value)| {
                self.hide_text(&mut name);
                (name, value)
            });
            *fields = renamed.collect();
        }
    }

    fn hide_text(&self, text: &mut String) {
        for (token, marker) in self.0.iter().filter(|(token, _)| text.contains(token)).collect::<Vec<_>>() {
            *text = text.replace(token, marker);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A rendered text with the tokens as the request wrote them.
    pub(super) fn show<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.0.iter().fold(Cow::Borrowed(text), |text, (token, marker)| match text.contains(marker) {
            true => text.replace(marker, token).into(),
            false => text,
        })
    }

    /// Parts of a rendered text to be encoded apart. A hidden token is in two of them, so that it
    /// becomes text.
    fn split(&self, text: &str) -> Vec<String> {
        let mut parts = vec![text.to_owned()];
        for (token, marker) in &self.0 {
            let first = token.chars().next().map_or(0, char::len_utf8);
            let (head, tail) = token.split_at(first);
            let separated = parts.iter().flat_map(|part| {
                let mut pieces = part.split(&marker[..]).peekable();
                let mut start = "";
                std::iter::from_fn(move || {
                    let piece = pieces.next()?;
                    let end = if pieces.peek().is_some() { head } else { "" };
                    Some(format!("{}{piece}{end}", std::mem::replace(&mut start, tail)))
                })
            });
            parts = separated.collect();
        }
        parts
    }
}

/// Encodes a part of a prompt; the flag says whether it is the first one.
type Encode<'a> = dyn Fn(&str, bool) -> Result<Vec<u32>, chat::Error> + 'a;

fn contains(value: &Value, part: &str) -> bool {
    match value {
        Value::String(text) => text.contains(part),
        Value::Array(items) => items.iter().any(|item| contains(item, part)),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| name.contains(part) || contains(value, part))
        }
        _ => false,
    }
}

/// Replaces the placeholders of a rendered text, which are those of `plans` in order, and encodes
/// it. Text around an image is encoded together with the texts of its expansion.
///
/// # Errors
/// The template printed another number of placeholders, or the tokenizer does not know the image
/// token.
pub(super) fn expand(
    text: &str,
    plans: &[Plan],
    vision: &Vision,
    literals: &Literals,
    encode: &Encode,
) -> Result<Expanded, PromptError> {
    let parts: Vec<&str> = text.split(vision.placeholder()).collect();
    if parts.len() != plans.len() + 1 {
        return Err(PromptError::Placeholders { images: plans.len(), printed: parts.len() - 1 });
    }
    let mut short = String::with_capacity(text.len());
    for (part, plan) in parts.iter().zip(plans) {
        short.push_str(part);
        plan.expansion.iter().for_each(|piece| match piece {
            Piece::Text(text) => short.push_str(text),
            Piece::Special(token) => short.push_str(token),
            Piece::Image(_) => short.push_str(vision.image_token()),
        });
    }
    short.push_str(parts[plans.len()]);
    let mut short_ids = vec![];
    for (index, part) in literals.split(&short).iter().enumerate() {
        short_ids.extend(encode(part, index == 0)?);
    }
    let mut expanded =
        Expanded { text: short, ids: vec![], positions: vec![vec![]; plans.len()], runs: vec![], short_ids };
    let lengths = plans.iter().enumerate().flat_map(|(image, plan)| {
        let runs = plan.expansion.iter();
        runs.filter_map(
            move |piece| if let Piece::Image(count) = piece { Some((image, *count)) } else { None },
        )
    });
    let mut lengths = lengths.peekable();
    for (at, &id) in expanded.short_ids.iter().enumerate() {
        if id != vision.image_token_id {
            expanded.ids.push(id);
            continue;
        }
        let (image, length) = lengths.next().ok_or(PromptError::ImageToken)?;
        let start = expanded.ids.len();
        expanded.ids.resize(start + length, id);
        expanded.positions[image].push(start..start + length);
        expanded.runs.push((at, length));
    }
    match lengths.peek() {
        Some(_) => Err(PromptError::ImageToken),
        None => Ok(expanded),
    }
}

/// How prompts are encoded.
pub(super) fn encoder(
    tokenizer: &Tokenizer,
    add_special_tokens: bool,
) -> impl Fn(&str, bool) -> Result<Vec<u32>, chat::Error> {
    move |text, is_first| match add_special_tokens && is_first {
        true => tokenizer.encode(text, true),
        false => tokenizer.encode_prompt(text),
    }
}
