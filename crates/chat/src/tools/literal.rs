//! Values as Python and Gemma write them, read into JSON.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use serde_json::{Map, Value};

use super::{
    call_id::CallIds,
    reader::{Malformed, Reader, Result},
};

/// Gemma's quotation mark.
pub(super) const QUOTE: &str = "<|\"|>";
/// Maximum nesting: deeper values would exhaust the stack.
const MAX_DEPTH: usize = 64;
/// Characters that end a number or a word.
const WORD_ENDS: [&str; 8] = [",", ")", "]", "}", ":", " ", "\n", "<"];

type Reading<'a> = Pin<Box<dyn Future<Output = Result<Value>> + Send + 'a>>;

/// Reads one value that contains at most [`MAX_DEPTH`] - `depth` levels.
pub(super) fn value(reader: &Reader, depth: usize) -> Reading<'_> {
    Box::pin(async move {
        if depth == MAX_DEPTH {
            return Err(Malformed);
        }
        if let Some(text) = string(reader).await? {
            return Ok(Value::String(text));
        }
        for (open, close) in [("[", "]"), ("(", ")")] {
            if reader.accept(open).await {
                return list(reader, close, depth + 1).await;
            }
        }
        match reader.accept("{").await {
            true => object(reader, depth + 1).await,
            false => word(reader).await,
        }
    })
}

/// A list or an object that is the whole text.
pub(super) fn whole(text: &str) -> Option<Value> {
    if !text.starts_with(['[', '{']) {
        return None;
    }
    let reader = Reader::new(CallIds::new(0, ("", 0)));
    {
        let mut tape = reader.tape();
        (tape.text, tape.ended) = (text.to_owned(), true);
    }
    let read = value(&reader, 0).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    match read {
        Poll::Ready(Ok(value)) => Some(value).filter(|_| reader.tape().text.trim().is_empty()),
        Poll::Ready(Err(Malformed)) | Poll::Pending => None,
    }
}

/// Reads a key: a string, or a word before a colon.
pub(super) async fn key(reader: &Reader) -> Result<String> {
    match string(reader).await? {
        Some(text) => Ok(text),
        None => Ok(reader.until(&[":"]).await?.trim().to_owned()),
    }
}

async fn list(reader: &Reader, close: &str, depth: usize) -> Result<Value> {
    let mut items = Vec::new();
    loop {
        reader.spaces().await;
        if reader.accept(close).await {
            return Ok(Value::Array(items));
        }
        items.push(value(reader, depth).await?);
        reader.spaces().await;
        if !reader.accept(",").await && !reader.sees(close).await {
            return Err(Malformed);
        }
    }
}

async fn object(reader: &Reader, depth: usize) -> Result<Value> {
    let mut members = Map::new();
    loop {
        reader.spaces().await;
        if reader.accept("}").await {
            return Ok(Value::Object(members));
        }
        let key = key(reader).await?;
        reader.spaces().await;
        reader.expect(":").await?;
        reader.spaces().await;
        members.insert(key, value(reader, depth).await?);
        reader.spaces().await;
        if !reader.accept(",").await && !reader.sees("}").await {
            return Err(Malformed);
        }
    }
}

/// Reads a number, or `true`, `None` and the like.
async fn word(reader: &Reader) -> Result<Value> {
    let word = reader.until(&WORD_ENDS).await?;
    match &*word {
        "True" | "true" => Ok(Value::Bool(true)),
        "False" | "false" => Ok(Value::Bool(false)),
        "None" | "null" => Ok(Value::Null),
        number => serde_json::from_str(number).map_err(|_| Malformed),
    }
}

/// Reads a string if one begins here.
async fn string(reader: &Reader) -> Result<Option<String>> {
    if reader.accept(QUOTE).await {
        let text = reader.until(&[QUOTE]).await?;
        reader.expect(QUOTE).await?;
        return Ok(Some(text));
    }
    for quote in ["\"", "'"] {
        if reader.accept(quote).await {
            return quoted(reader, quote).await.map(Some);
        }
    }
    Ok(None)
}

/// Reads the rest of a string, with Python's and JSON's escapes.
async fn quoted(reader: &Reader, quote: &str) -> Result<String> {
    let mut text = String::new();
    loop {
        text += &reader.until(&[quote, "\\"]).await?;
        if reader.accept(quote).await {
            return Ok(text);
        }
        reader.expect("\\").await?;
        let escaped = character(reader).await?;
        match escaped {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            '\n' => {}
            'x' => text.push(char::from_u32(hex(reader, 2).await?).ok_or(Malformed)?),
            'u' => text.push(utf16(reader).await?),
            'U' => text.push(char::from_u32(hex(reader, 8).await?).ok_or(Malformed)?),
            '\\' | '"' | '\'' | '/' => text.push(escaped),
            other => text.extend(['\\', other]),
        }
    }
}

/// A character written as four hex digits, or as two surrogates.
async fn utf16(reader: &Reader) -> Result<char> {
    let first = hex(reader, 4).await?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first).ok_or(Malformed);
    }
    reader.expect("\\u").await?;
    let second = hex(reader, 4).await?.checked_sub(0xdc00).filter(|&low| low < 0x400).ok_or(Malformed)?;
    char::from_u32(0x10000 + ((first - 0xd800) << 10) + second).ok_or(Malformed)
}

async fn hex(reader: &Reader, digits: usize) -> Result<u32> {
    let mut value = 0;
    for _ in 0..digits {
        value = value * 16 + character(reader).await?.to_digit(16).ok_or(Malformed)?;
    }
    Ok(value)
}

async fn character(reader: &Reader) -> Result<char> {
    let first = reader.some().await?.chars().next().ok_or(Malformed)?;
    reader.take(first.len_utf8());
    Ok(first)
}
