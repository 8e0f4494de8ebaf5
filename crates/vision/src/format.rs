//! Image formats, recognised by their first bytes; a declared media type is never trusted.

use std::fmt;

use crate::{Error, Result};

/// A supported image format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Portable Network Graphics; of an animation the default image.
    Png,
    /// JPEG, baseline or progressive, 8 bits.
    Jpeg,
    /// WebP, lossy or lossless; of an animation the first frame.
    WebP,
    /// GIF; of an animation the first frame.
    Gif,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::WebP => "WebP",
            Format::Gif => "GIF",
        })
    }
}

/// Other formats that clients send, by a signature and its offset; only to name them in errors.
const OTHERS: &[(usize, &[u8], &str)] = &[
    (0, b"%PDF-", "a PDF document"),
    (0, b"PK\x03\x04", "a ZIP archive or an office document"),
    (0, b"BM", "a BMP file"),
    (0, b"II*\0", "a TIFF file"),
    (0, b"MM\0*", "a TIFF file"),
    (0, b"\0\0\x01\0", "an icon file"),
    (4, b"ftypavif", "an AVIF file"),
    (4, b"ftypheic", "a HEIC file"),
    (4, b"ftypheix", "a HEIC file"),
    (4, b"ftypmif1", "a HEIF file"),
    (4, b"ftyp", "a video or HEIF file"),
    (0, b"\xff\x0a", "a JPEG XL file"),
    (0, b"\0\0\0\x0cJXL ", "a JPEG XL file"),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000 file"),
    (0, b"RIFF", "a RIFF file other than WebP"),
    (0, b"\x1f\x8b", "gzip data"),
];

impl Format {
    /// Recognises a format by its signature at the first byte.
    ///
    /// # Errors
    /// [`Error::UnsupportedFormat`], which names the format if it is a known other one.
    pub fn sniff(bytes: &[u8]) -> Result<Format> {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Format::Png),
            [0xff, 0xd8, 0xff, ..] => Ok(Format::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Format::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Format::WebP),
            _ => Err(Error::UnsupportedFormat { found: name_of_other(bytes) }),
        }
    }
}

fn name_of_other(bytes: &[u8]) -> &'static str {
    if bytes.is_empty() {
        return "empty";
    }
    let matches =
        |at: usize, signature: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(signature));
    if let Some((.., name)) = OTHERS.iter().find(|(at, signature, _)| matches(*at, signature)) {
        return name;
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let head = &text[..text.len().min(1024)];
    if head.first() != Some(&b'<') {
        return "in no known format";
    }
    // Comments, a doctype or an XML declaration may precede the element.
    if head.windows(4).any(|window| window.eq_ignore_ascii_case(b"<svg")) {
        return "an SVG document";
    }
    "an HTML or XML document"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Format, &str>) {
        match (Format::sniff(bytes), expected) {
            (Ok(format), Ok(expected)) => assert_eq!(format, expected),
            (Err(error), Err(expected)) => assert_eq!(
                error.to_string(),
                format!("the image is {expected}; send a PNG, JPEG, WebP or GIF file")
            ),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn signatures_of_supported_formats_are_recognised() {
        check(b"\x89PNG\r\n\x1a\n", Ok(Format::Png));
        check(b"\xff\xd8\xff\xe0", Ok(Format::Jpeg));
        check(b"GIF87a", Ok(Format::Gif));
        check(b"GIF89a", Ok(Format::Gif));
        check(b"RIFF\x10\0\0\0WEBPVP8 ", Ok(Format::WebP));
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        check(b"", Err("empty"));
        check(b"<svg xmlns='http://www.w3.org/2000/svg'/>", Err("an SVG document"));
        check(b"\xef\xbb\xbf <?xml version='1.0'?><!-- x --><SVG>", Err("an SVG document"));
        check(b"<!doctype html><p>", Err("an HTML or XML document"));
        check(b"%PDF-1.7", Err("a PDF document"));
        check(b"\0\0\0\x20ftypheic", Err("a HEIC file"));
        check(b"\0\0\0\x20ftypavif", Err("an AVIF file"));
        check(b"RIFF\x10\0\0\0WAVEfmt ", Err("a RIFF file other than WebP"));
        check(b"II*\0", Err("a TIFF file"));
        check(b"GIF88a", Err("in no known format"));
        // A signature after other bytes is not one.
        check(b"\n\x89PNG\r\n\x1a\n", Err("in no known format"));
    }
}
