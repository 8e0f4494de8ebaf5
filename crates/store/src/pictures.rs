//! Pictures of messages: files of their own in the store, data URIs in `images` outside.

use std::collections::HashMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};
use rusqlite::{Transaction, params};
use serde_json::{Map, Value};

use crate::StoreError;

/// The field of a message that has them.
const FIELD: &str = "images";

/// A picture of a message.
#[derive(Debug, PartialEq)]
struct Picture {
    /// `data:image/png;base64,`
    head: String,
    bytes: Vec<u8>,
}

impl Picture {
    /// `None` if the text would not be the same when it is read.
    fn parse(uri: &str) -> Option<Picture> {
        let at = uri.starts_with("data:").then(|| uri.find(','))?? + 1;
        let (head, data) = uri.split_at(at);
        let bytes = BASE64_STANDARD.decode(data).ok()?;
        let is_same = head.ends_with(";base64,") && BASE64_STANDARD.encode(&bytes) == data;
        is_same.then(|| Picture { head: head.into(), bytes })
    }

    fn digest(&self) -> String {
        digest(&SHA256, &self.bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The fields without pictures, and the pictures. Fields with other values under that name stay.
fn split(other: &Map<String, Value>) -> (Map<String, Value>, Vec<Picture>) {
    let uris = other.get(FIELD).and_then(Value::as_array);
    let uris = uris.filter(|uris| !uris.is_empty());
    let parsed = uris.and_then(|uris| uris.iter().map(|uri| Picture::parse(uri.as_str()?)).collect());
    let mut other = other.clone();
    match parsed {
        Some(pictures) => {
            other.remove(FIELD);
            (other, pictures)
        }
        None => (other, vec![]),
    }
}

/// Stores the pictures among the other fields of a message that is stored already.
pub(crate) fn put(
    transaction: &Transaction,
    conversation: i64,
    id: &str,
    other: &Map<String, Value>,
) -> Result<(), StoreError> {
    let (_, pictures) = split(other);
    let message: i64 = transaction.query_row(
        "SELECT number FROM message WHERE conversation = ?1 AND id = ?2",
        params![conversation, id],
        |row| row.get(0),
    )?;
    let wanted: Vec<(String, String)> = pictures.iter().map(|one| (one.head.clone(), one.digest())).collect();
    let mut statement =
        transaction.prepare("SELECT head, digest FROM picture WHERE message = ?1 ORDER BY position")?;
    let stored = statement.query_map([message], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let stored: Vec<(String, String)> = stored.collect::<Result<_, _>>()?;
    if stored == wanted {
        return Ok(());
    }
    transaction.execute("DELETE FROM picture WHERE message = ?1", [message])?;
    for (position, (picture, (head, digest))) in pictures.iter().zip(&wanted).enumerate() {
        transaction.execute(
            "INSERT INTO blob (digest, bytes) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            params![digest, picture.bytes],
        )?;
        transaction.execute(
            "INSERT INTO picture (message, position, head, digest) VALUES (?1, ?2, ?3, ?4)",
            params![message, position as i64, head, digest],
        )?;
    }
    Ok(())
}

/// Other fields of a message as they are stored: without pictures.
pub(crate) fn without(other: &Map<String, Value>) -> Map<String, Value> {
    split(other).0
}

/// The pictures of a conversation's messages, by the messages' ids.
pub(crate) fn read(
    state: &Transaction,
    conversation: i64,
) -> Result<HashMap<String, Vec<Value>>, StoreError> {
    let mut statement = state.prepare(
        "SELECT message.id, head, bytes FROM message
         JOIN picture ON picture.message = message.number JOIN blob USING (digest)
         WHERE conversation = ?1 ORDER BY message.number, position",
    )?;
    let rows = statement.query_map([conversation], |row| {
        let (head, bytes): (String, Vec<u8>) = (row.get(1)?, row.get(2)?);
        Ok((row.get::<_, String>(0)?, Value::from(head + &BASE64_STANDARD.encode(bytes))))
    })?;
    let mut pictures: HashMap<String, Vec<Value>> = HashMap::new();
    for row in rows {
        let (id, uri) = row?;
        pictures.entry(id).or_default().push(uri);
    }
    Ok(pictures)
}

/// Puts the pictures back into the fields of a message.
pub(crate) fn restore(other: &mut Map<String, Value>, pictures: Vec<Value>) {
    other.insert(FIELD.into(), pictures.into());
}

/// The number of pictures that a message has.
pub(crate) fn count(other: &Map<String, Value>) -> usize {
    other.get(FIELD).and_then(Value::as_array).map_or(0, Vec::len)
}

/// Bytes of the data URIs of a conversation.
pub(crate) fn bytes(state: &Transaction, conversation: i64) -> Result<usize, StoreError> {
    let bytes: f64 = state.query_row(
        "SELECT total(length(bytes) * 4 / 3 + 64) FROM message
         JOIN picture ON picture.message = message.number JOIN blob USING (digest) WHERE conversation = ?1",
        [conversation],
        |row| row.get(0),
    )?;
    Ok(bytes as usize)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_uris_that_read_the_same_become_files() {
        let check = |images: Value, expected: Option<usize>| {
            let Value::Object(other) = json!({ "images": images, "x": 1 }) else { return };
            let (rest, pictures) = split(&other);
            assert_eq!(rest.contains_key(FIELD), expected.is_none(), "{images}");
            assert_eq!(pictures.len(), expected.unwrap_or(0), "{images}");
            assert_eq!(rest["x"], 1);
        };
        check(json!(["data:image/png;base64,AAEC", "data:;base64,AA=="]), Some(2));
        for images in [
            json!([]),
            json!(["data:image/png;base64,AA"]),
            json!(["data:image/png;base64,A_-C"]),
            json!(["data:text/plain,abc"]),
            json!(["https://a/b.png"]),
            json!([7]),
            json!("data:;base64,AA=="),
        ] {
            check(images, None);
        }
    }
}
