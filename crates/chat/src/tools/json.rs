//! JSON in text that arrives in pieces: finds where a value ends and passes its text on unchanged.

use serde_json::{Map, Value};

use super::{
    ToolSet,
    reader::{Malformed, Reader, Result},
};

/// Finds the end of a JSON value.
#[derive(Debug, Default)]
struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    started: bool,
}

impl Scanner {
    /// The length of the part of `text` that belongs to the value; whether the value ends there.
    fn scan(&mut self, text: &str) -> (usize, bool) {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => {
                    self.in_string = !self.in_string;
                    if !self.in_string && self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' | b']' if self.depth == 1 => return (at + 1, true),
                // A number or word ends before these.
                b'}' | b']' | b',' | b' ' | b'\n' if self.depth == 0 && self.started => return (at, true),
                _ => {}
            }
            self.started = true;
        }
        (text.len(), false)
    }
}

/// Reads one JSON value; `piece` gets its text in pieces.
async fn value(reader: &Reader, mut piece: impl FnMut(&str)) -> Result<Value> {
    let (mut scanner, mut whole) = (Scanner::default(), String::new());
    loop {
        let text = reader.some().await?;
        let (length, ended) = scanner.scan(&text);
        let text = reader.take(length);
        piece(&text);
        whole.push_str(&text);
        if ended {
            return serde_json::from_str(&whole).map_err(|_| Malformed);
        }
    }
}

/// Reads a JSON object as the arguments of the current call.
pub(super) async fn arguments(reader: &Reader) -> Result<()> {
    if !reader.sees("{").await {
        return Err(Malformed);
    }
    value(reader, |text| reader.arguments(text)).await.map(drop)
}

/// Reads a JSON string.
pub(super) async fn string(reader: &Reader) -> Result<String> {
    if !reader.sees("\"").await {
        return Err(Malformed);
    }
    match value(reader, |_| {}).await? {
        Value::String(text) => Ok(text),
        _ => Err(Malformed),
    }
}

/// Reads a call that is one object with the tool's name and its arguments, in any order.
pub(super) async fn call(reader: &Reader, tools: &ToolSet) -> Result<()> {
    reader.expect("{").await?;
    let (mut name, mut id, mut begun, mut held) = (None, None, false, Value::Object(Map::new()));
    loop {
        reader.spaces().await;
        let key = string(reader).await?;
        reader.spaces().await;
        reader.expect(":").await?;
        reader.spaces().await;
        match (&*key, &name) {
            ("name", None) => name = Some(tools.known(&string(reader).await?)?.to_owned()),
            ("id", _) => id = Some(string(reader).await?),
            ("arguments" | "parameters", Some(name)) if !begun && reader.sees("{").await => {
                reader.begin(name, id.take());
                begun = true;
                arguments(reader).await?;
            }
            ("arguments" | "parameters", _) => held = value(reader, |_| {}).await?,
            _ => drop(value(reader, |_| {}).await?),
        }
        reader.spaces().await;
        if !reader.accept(",").await {
            break;
        }
    }
    reader.expect("}").await?;
    let name: String = name.ok_or(Malformed)?;
    if !begun {
        reader.begin(&name, id);
        reader.arguments(&object(held)?.to_string());
    }
    Ok(())
}

/// Arguments that are an object, or a string that holds one.
fn object(value: Value) -> Result<Value> {
    let value = match value {
        Value::String(text) => serde_json::from_str(&text).map_err(|_| Malformed)?,
        value => value,
    };
    if value.is_object() { Ok(value) } else { Err(Malformed) }
}
