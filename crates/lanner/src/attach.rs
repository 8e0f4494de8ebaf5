//! Images that the user attaches in the terminal: by a flag, a command, or a file dropped onto the
//! window.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vision::{Detail, EncodedImage};

use crate::{
    conversation,
    image::{ImageError, Images, LIMITS},
};

/// Ends of names that a dropped file must have, so that no message is taken for one.
const ENDS: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// Why a file cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Adds the image file at `path`. Returns the content part that refers to it.
///
/// # Errors
/// It cannot be read, or is no image that can be used.
pub fn attach_image(path: &Path, images: &mut Images) -> Result<Value, AttachError> {
    let bytes = files::read(path, LIMITS.max_file_bytes);
    let bytes = bytes.map_err(|error| AttachError::Read { path: path.to_owned(), error })?;
    Ok(images.add_file(EncodedImage::new(bytes), Detail::Auto, path.display().to_string())?)
}

/// The image file that a line names and nothing else, as terminals write the path of a dropped
/// file: plain, in quotes, with backslashes before special characters, or as a file: URL. `None` if
/// there is no such file.
pub fn dropped_image(line: &str) -> Option<PathBuf> {
    let line = line.trim();
    let readings = [Some(line.to_owned()), unquoted(line), Some(unescaped(line)), from_url(line)];
    readings.into_iter().flatten().map(PathBuf::from).find(|path| {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        path.is_absolute() && ENDS.iter().any(|known| known.eq_ignore_ascii_case(end)) && path.is_file()
    })
}

/// A user's message with images before its text.
pub fn message(images: Vec<Value>, text: &str) -> Value {
    if images.is_empty() {
        return conversation::user(text);
    }
    let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    json!({ "role": "user", "content": images.into_iter().chain(text).collect::<Vec<Value>>() })
}

/// Messages as a request has them, each image in a data URI.
pub fn with_data_uris(mut messages: Vec<Value>, images: &Images) -> Vec<Value> {
    let contents = messages.iter_mut().filter_map(|message| message["content"].as_array_mut());
    for part in contents.flatten().filter(|part| part["type"] == "image") {
        if let Some(uri) = images.data_uri(part) {
            *part = json!({ "type": "image_url", "image_url": { "url": uri } });
        }
    }
    messages
}

fn unquoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    // A quote within quotes, as shells write it.
    Some(inner.replace("'\\''", "'"))
}

fn unescaped(text: &str) -> String {
    let mut is_escaped = false;
    text.chars()
        .filter(|character| {
            is_escaped = !is_escaped && *character == '\\';
            !is_escaped
        })
        .collect()
}

fn from_url(text: &str) -> Option<String> {
    let path = text.strip_prefix("file://")?;
    let path = path.strip_prefix("localhost").unwrap_or(path);
    let mut bytes = vec![];
    let mut rest = path.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                rest = after;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::image::tests::PNG_BYTES;

    #[test]
    fn dropped_file_is_found_however_the_terminal_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        for name in ["a.png", "b c.JPG", "d'e.webp"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let check = |line: String, expected: Option<&str>| {
            assert_eq!(dropped_image(&line), expected.map(|name| folder.path().join(name)), "{line}");
        };
        check(format!("{at}/a.png"), Some("a.png"));
        check(format!("  {at}/a.png "), Some("a.png"));
        check(format!("'{at}/a.png'"), Some("a.png"));
        check(format!("{at}/b c.JPG"), Some("b c.JPG"));
        check(format!("\"{at}/b c.JPG\""), Some("b c.JPG"));
        check(format!("{at}/b\\ c.JPG"), Some("b c.JPG"));
        check(format!("file://{at}/b%20c.JPG"), Some("b c.JPG"));
        check(format!("file://localhost{at}/a.png"), Some("a.png"));
        check(format!("'{at}/d'\\''e.webp'"), Some("d'e.webp"));
        check(format!("{at}/d\\'e.webp"), Some("d'e.webp"));
        check(format!("{at}/missing.png"), None);
        check(format!("what is {at}/a.png"), None);
        check("a.png".into(), None);
        check(format!("file://{at}/%zz.png"), None);
        check(at.to_string(), None);
        check(String::new(), None);
    }

    #[test]
    fn attached_image_becomes_a_part_and_a_data_uri() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jpg");
        fs::write(&path, PNG_BYTES).unwrap();
        let mut images = Images::default();
        let part = attach_image(&path, &mut images).unwrap();
        let turn = message(vec![part], "what?");
        let content = with_data_uris(vec![turn], &images)[0]["content"].clone();
        let url = content[0]["image_url"]["url"].as_str().unwrap();
        // The type is that of the bytes, not of the name.
        assert!(url.starts_with("data:image/png;base64,iVBORw0KGgo"), "{url}");
        assert_eq!(content[1], json!({ "type": "text", "text": "what?" }));
        assert_eq!(message(vec![], "x"), conversation::user("x"));
    }

    #[test]
    fn file_that_is_no_image_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        fs::write(&path, "<svg/>").unwrap();
        let mut images = Images::default();
        let error = attach_image(&path, &mut images).unwrap_err().to_string();
        assert!(
            error.ends_with("a.png: the image is an SVG document; send a PNG, JPEG, WebP or GIF file"),
            "{error}"
        );
        let error = attach_image(&folder.path().join("b.png"), &mut images).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && images.is_empty(), "{error}");
        assert!(attach_image(folder.path(), &mut images).is_err());
    }
}
