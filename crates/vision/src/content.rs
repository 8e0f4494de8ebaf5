//! Images in the content of requests: parts of chat completions, responses and messages to the
//! bytes of a file. No URL is fetched and no path is opened.

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::Limits;

/// With or without padding, as clients send it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How many tokens a client wants to spend on an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    /// The model's own number.
    #[default]
    Auto,
    /// Few.
    Low,
    /// The model's own number, as for `auto`.
    High,
}

/// An image file as a request holds it, not yet decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedImage {
    /// The bytes of the file.
    pub bytes: Vec<u8>,
    /// Their SHA-256: files with equal digests need to be decoded once.
    pub digest: [u8; 32],
    /// The detail that the request asks for.
    pub detail: Detail,
}

/// Why a content part is not an image: the field within the part, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct PartError {
    /// The path of the field within the part: `image_url.url`.
    pub field: &'static str,
    /// What is wrong, and what to send instead.
    pub reason: String,
}

impl EncodedImage {
    /// Reads a content part: `image_url` of chat completions, `input_image` of responses, `image`
    /// of messages. `None` if the part's type is none of these.
    ///
    /// # Errors
    /// The image is not inline, its base64 is malformed, or it exceeds the limit on files.
    pub fn from_part(part: &Value, limits: &Limits) -> Option<Result<EncodedImage, PartError>> {
        match part["type"].as_str()? {
            "image_url" => Some(from_image_url(part, limits)),
            "input_image" => Some(from_input_image(part, limits)),
            "image" => Some(from_source(&part["source"], limits)),
            _ => None,
        }
    }
}

/// `{"type":"image_url","image_url":{"url":…,"detail":…}}`, or with a bare string.
fn from_image_url(part: &Value, limits: &Limits) -> Result<EncodedImage, PartError> {
    let image = &part["image_url"];
    if image.is_string() {
        return from_url("image_url", image, &Value::Null, limits);
    }
    from_url("image_url.url", &image["url"], &image["detail"], limits)
}

/// `{"type":"input_image","image_url":…,"detail":…}`.
fn from_input_image(part: &Value, limits: &Limits) -> Result<EncodedImage, PartError> {
    if !part["file_id"].is_null() {
        return Err(refuse("file_id", "files are not stored here; send a data: URI in image_url"));
    }
    from_url("image_url", &part["image_url"], &part["detail"], limits)
}

/// `{"type":"base64","data":…}`; the declared media type is not trusted.
fn from_source(source: &Value, limits: &Limits) -> Result<EncodedImage, PartError> {
    match source["type"].as_str() {
        Some("base64") => {}
        Some("url") => return from_url("source.url", &source["url"], &Value::Null, limits),
        _ => return Err(refuse("source.type", "it must be base64")),
    }
    let data = source["data"].as_str();
    let data = data.ok_or_else(|| refuse("source.data", "it must be a string of base64"))?;
    encoded("source.data", data, Detail::Auto, limits)
}

fn from_url(
    field: &'static str,
    url: &Value,
    detail: &Value,
    limits: &Limits,
) -> Result<EncodedImage, PartError> {
    let detail = match detail.as_str() {
        None if detail.is_null() => Detail::Auto,
        Some("auto") => Detail::Auto,
        Some("low") => Detail::Low,
        Some("high") => Detail::High,
        _ => return Err(refuse("detail", "it must be auto, low or high")),
    };
    let url = url.as_str().ok_or_else(|| refuse(field, "it must be a string with a data: URI"))?;
    // Schemes and parameters are case-insensitive.
    let is_data = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    if !is_data {
        return Err(refuse(field, "URLs are not fetched and files are not opened; send a data: URI"));
    }
    let (media_type, data) = url[5..].split_once(',').ok_or_else(|| {
        refuse(field, "the data: URI has no comma; send data:image/png;base64, and the data")
    })?;
    let last = media_type.rsplit(';').next().unwrap_or_default().trim();
    if !last.eq_ignore_ascii_case("base64") {
        return Err(refuse(field, "the data: URI must be in base64"));
    }
    encoded(field, data, detail, limits)
}

/// Decodes base64 of either alphabet, with line breaks anywhere.
fn encoded(
    field: &'static str,
    data: &str,
    detail: Detail,
    limits: &Limits,
) -> Result<EncodedImage, PartError> {
    let limit = limits.max_file_bytes;
    // Before anything is copied; line breaks add a thirtieth.
    if data.len() as u64 > limit / 3 * 4 + limit / 16 + 64 {
        return Err(refuse(field, &format!("the image has more than {limit} bytes; send a smaller one")));
    }
    let text: Vec<u8> = data
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => other,
        })
        .collect();
    let decoded = BASE64.decode(text);
    let bytes = decoded.map_err(|error| refuse(field, &format!("it is not base64: {error}")))?;
    if bytes.len() as u64 > limit {
        return Err(refuse(field, &format!("the image has more than {limit} bytes; send a smaller one")));
    }
    let sha256 = digest(&SHA256, &bytes);
    let digest = std::array::from_fn(|index| sha256.as_ref()[index]);
    Ok(EncodedImage { bytes, digest, detail })
}

fn refuse(field: &'static str, reason: &str) -> PartError {
    PartError { field, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(part: Value, expected: Result<(&[u8], Detail), &str>) {
        let found = EncodedImage::from_part(&part, &Limits::default()).expect("an image part");
        match (found, expected) {
            (Ok(image), Ok((bytes, detail))) => assert_eq!((&*image.bytes, image.detail), (bytes, detail)),
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn data_uris_of_all_apis_are_decoded() {
        let uri = "data:image/png;base64,AAEC+/8=";
        let bytes = &[0, 1, 2, 0xfb, 0xff][..];
        check(json!({"type":"image_url","image_url":{"url":uri}}), Ok((bytes, Detail::Auto)));
        check(json!({"type":"image_url","image_url":uri}), Ok((bytes, Detail::Auto)));
        check(json!({"type":"image_url","image_url":{"url":uri,"detail":"low"}}), Ok((bytes, Detail::Low)));
        check(json!({"type":"input_image","image_url":uri,"detail":"high"}), Ok((bytes, Detail::High)));
        let source = json!({"type":"base64","media_type":"text/html","data":"AAEC+/8="});
        check(json!({"type":"image","source":source}), Ok((bytes, Detail::Auto)));
        check(json!({"type":"image","source":{"type":"url","url":uri}}), Ok((bytes, Detail::Auto)));
    }

    #[test]
    fn base64_variants_are_accepted() {
        for data in ["AAEC-_8", "AAEC\r\n +/8=", "AAEC+/8"] {
            let uri = format!("DATA:;charset=x;BASE64,{data}");
            let part = json!({"type":"image_url","image_url":{"url":uri}});
            check(part, Ok((&[0, 1, 2, 0xfb, 0xff][..], Detail::Auto)));
        }
    }

    #[test]
    fn anything_but_inline_data_is_refused() {
        let not_fetched = "image_url.url: URLs are not fetched and files are not opened; send a data: URI";
        for url in ["http://a/b.png", "https://127.0.0.1/", "file:///etc/passwd", "/etc/passwd", "ftp:x", ""]
        {
            check(json!({"type":"image_url","image_url":{"url":url}}), Err(not_fetched));
        }
        check(
            json!({"type":"input_image","file_id":"file-1"}),
            Err("file_id: files are not stored here; send a data: URI in image_url"),
        );
        check(
            json!({"type":"image","source":{"type":"file","file_id":"x"}}),
            Err("source.type: it must be base64"),
        );
        check(
            json!({"type":"image_url","image_url":{}}),
            Err("image_url.url: it must be a string with a data: URI"),
        );
        check(
            json!({"type":"image_url","image_url":{"url":"data:image/png,abc"}}),
            Err("image_url.url: the data: URI must be in base64"),
        );
        check(
            json!({"type":"image_url","image_url":{"url":"data:,x","detail":"max"}}),
            Err("detail: it must be auto, low or high"),
        );
        let part = json!({"type":"image_url","image_url":"data:;base64,A*"});
        let error = EncodedImage::from_part(&part, &Limits::default()).unwrap().unwrap_err();
        assert!(error.to_string().starts_with("image_url: it is not base64: "), "{error}");
    }

    #[test]
    fn images_beyond_the_limit_are_refused() {
        let limits = Limits { max_file_bytes: 4, ..Limits::default() };
        for (data, is_refused) in [("AAECAw==", false), ("AAECAwQ=", true), (&"A".repeat(1000), true)] {
            let part = json!({"type":"image","source":{"type":"base64","data":data}});
            let image = EncodedImage::from_part(&part, &limits).unwrap();
            assert_eq!(image.is_err(), is_refused, "{data}");
        }
    }

    #[test]
    fn other_parts_are_no_images() {
        for part in [json!({"type":"text","text":"x"}), json!({"type":7}), json!("image")] {
            assert_eq!(EncodedImage::from_part(&part, &Limits::default()), None);
        }
    }
}
