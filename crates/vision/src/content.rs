//! Images in the content of requests: parts of chat completions, responses and messages to the
//! bytes of a file, or to the URL of one. No URL is fetched and no path is opened.

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

/// Longest URL of an image, in bytes.
const MAX_URL: usize = 8192;

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
}

/// Where the file of an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// In the request.
    Inline(EncodedImage),
    /// At an http or https URL. Whether it may be fetched is up to the caller.
    Url(String),
}

/// A content part that is an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePart {
    /// The path of the field within the part that holds the image: `image_url.url`.
    pub field: &'static str,
    /// The file, or where it is.
    pub source: ImageSource,
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

impl ImagePart {
    /// Reads a content part: `image_url` of chat completions, `input_image` of responses, `image`
    /// of messages. `None` if the part's type is none of these.
    ///
    /// # Errors
    /// The image is neither inline nor at a URL, its base64 is malformed, or it exceeds the limit
    /// on files.
    pub fn parse(part: &Value, limits: &Limits) -> Option<Result<ImagePart, PartError>> {
        match part["type"].as_str()? {
            "image_url" => Some(from_image_url(part, limits)),
            "input_image" => Some(from_input_image(part, limits)),
            "image" => Some(from_source(&part["source"], limits)),
            _ => None,
        }
    }
}

impl EncodedImage {
    /// The bytes of a file.
    pub fn new(bytes: Vec<u8>) -> EncodedImage {
        let sha256 = digest(&SHA256, &bytes);
        EncodedImage { digest: std::array::from_fn(|index| sha256.as_ref()[index]), bytes }
    }

    /// Decodes base64 of either alphabet, with line breaks anywhere.
    ///
    /// # Errors
    /// It is malformed, or exceeds the limit on files; the sentence says so.
    pub fn from_base64(data: &str, limits: &Limits) -> Result<EncodedImage, String> {
        let limit = limits.max_file_bytes;
        let too_large = || format!("the image has more than {limit} bytes; send a smaller one");
        // Before anything is copied; line breaks add a thirtieth.
        if data.len() as u64 > limit / 3 * 4 + limit / 16 + 64 {
            return Err(too_large());
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
        let bytes = BASE64.decode(text).map_err(|error| format!("it is not base64: {error}"))?;
        if bytes.len() as u64 > limit {
            return Err(too_large());
        }
        Ok(EncodedImage::new(bytes))
    }
}

/// `{"type":"image_url","image_url":{"url":…,"detail":…}}`, or with a bare string.
fn from_image_url(part: &Value, limits: &Limits) -> Result<ImagePart, PartError> {
    let image = &part["image_url"];
    if image.is_string() {
        return from_url("image_url", image, &part["detail"], limits);
    }
    from_url("image_url.url", &image["url"], &image["detail"], limits)
}

/// `{"type":"input_image","image_url":…,"detail":…}`.
fn from_input_image(part: &Value, limits: &Limits) -> Result<ImagePart, PartError> {
    if !part["file_id"].is_null() {
        return Err(refuse("file_id", "files are not stored here; send a data: URI in image_url"));
    }
    from_url("image_url", &part["image_url"], &part["detail"], limits)
}

/// `{"type":"base64","data":…}`; the declared media type is not trusted.
fn from_source(source: &Value, limits: &Limits) -> Result<ImagePart, PartError> {
    match source["type"].as_str() {
        Some("base64") => {}
        Some("url") => return from_url("source.url", &source["url"], &Value::Null, limits),
        Some("file") => {
            return Err(refuse("source.type", "files are not stored here; send the image in base64"));
        }
        _ => return Err(refuse("source.type", "it must be base64 or url")),
    }
    let data = source["data"].as_str();
    let data = data.ok_or_else(|| refuse("source.data", "it must be a string of base64"))?;
    inline("source.data", data, Detail::Auto, limits)
}

fn from_url(
    field: &'static str,
    url: &Value,
    detail: &Value,
    limits: &Limits,
) -> Result<ImagePart, PartError> {
    let detail = match detail.as_str() {
        None if detail.is_null() => Detail::Auto,
        Some("auto") => Detail::Auto,
        Some("low") => Detail::Low,
        Some("high" | "original") => Detail::High,
        _ => return Err(refuse("detail", "it must be auto, low or high")),
    };
    let url = url.as_str().ok_or_else(|| refuse(field, "it must be a string with a data: URI"))?;
    if has_scheme(url, "https") || has_scheme(url, "http") {
        if url.len() > MAX_URL {
            return Err(refuse(field, &format!("the URL has more than {MAX_URL} bytes")));
        }
        return Ok(ImagePart { field, source: ImageSource::Url(url.to_owned()), detail });
    }
    if !has_scheme(url, "data") {
        return Err(refuse(field, "it must be a data: URI with an image in base64; files are not opened"));
    }
    let (media_type, data) = url["data:".len()..].split_once(',').ok_or_else(|| {
        refuse(field, "the data: URI has no comma; send data:image/png;base64, and the data")
    })?;
    let last = media_type.rsplit(';').next().unwrap_or_default().trim();
    if !last.eq_ignore_ascii_case("base64") {
        return Err(refuse(field, "the data: URI must be in base64"));
    }
    inline(field, data, detail, limits)
}

/// Schemes are case-insensitive.
fn has_scheme(url: &str, scheme: &str) -> bool {
    url.split_once(':').is_some_and(|(start, _)| start.eq_ignore_ascii_case(scheme))
}

fn inline(field: &'static str, data: &str, detail: Detail, limits: &Limits) -> Result<ImagePart, PartError> {
    let image = EncodedImage::from_base64(data, limits).map_err(|reason| PartError { field, reason })?;
    Ok(ImagePart { field, source: ImageSource::Inline(image), detail })
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
        let found = ImagePart::parse(&part, &Limits::default()).expect("an image part");
        match (found, expected) {
            (Ok(ImagePart { source: ImageSource::Inline(image), detail, .. }), Ok(expected)) => {
                assert_eq!((&*image.bytes, detail), expected);
            }
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
        let not_fetched =
            "image_url.url: it must be a data: URI with an image in base64; files are not opened";
        for url in ["file:///etc/passwd", "/etc/passwd", "ftp:x", "httpx://a", "", "blob:x", "\u{e9}"] {
            check(json!({"type":"image_url","image_url":{"url":url}}), Err(not_fetched));
        }
        check(
            json!({"type":"input_image","file_id":"file-1"}),
            Err("file_id: files are not stored here; send a data: URI in image_url"),
        );
        check(
            json!({"type":"image","source":{"type":"file","file_id":"x"}}),
            Err("source.type: files are not stored here; send the image in base64"),
        );
        check(json!({"type":"image","source":{"type":"s3"}}), Err("source.type: it must be base64 or url"));
        check(json!({"type":"image","image":"a.png"}), Err("source.type: it must be base64 or url"));
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
        let error = ImagePart::parse(&part, &Limits::default()).unwrap().unwrap_err();
        assert!(error.to_string().starts_with("image_url: it is not base64: "), "{error}");
    }

    #[test]
    fn url_is_returned_as_it_is() {
        for part in [
            json!({"type":"image_url","image_url":{"url":"HTTPS://a/b.png?c","detail":"low"}}),
            json!({"type":"input_image","image_url":"HTTPS://a/b.png?c","detail":"low"}),
            json!({"type":"image","source":{"type":"url","url":"HTTPS://a/b.png?c"}}),
        ] {
            let image = ImagePart::parse(&part, &Limits::default()).unwrap().unwrap();
            assert_eq!(image.source, ImageSource::Url("HTTPS://a/b.png?c".into()));
        }
        let long = format!("https://a/{}", "x".repeat(MAX_URL));
        check(
            json!({"type":"image_url","image_url":long}),
            Err("image_url: the URL has more than 8192 bytes"),
        );
    }

    #[test]
    fn images_beyond_the_limit_are_refused() {
        let limits = Limits { max_file_bytes: 4, ..Limits::default() };
        for (data, is_refused) in [("AAECAw==", false), ("AAECAwQ=", true), (&"A".repeat(1000), true)] {
            let part = json!({"type":"image","source":{"type":"base64","data":data}});
            let image = ImagePart::parse(&part, &limits).unwrap();
            assert_eq!(image.is_err(), is_refused, "{data}");
        }
    }

    #[test]
    fn other_parts_are_no_images() {
        for part in [json!({"type":"text","text":"x"}), json!({"type":7}), json!("image")] {
            assert_eq!(ImagePart::parse(&part, &Limits::default()), None);
        }
    }
}
