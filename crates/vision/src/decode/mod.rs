//! Bytes of an image file to upright RGB pixels, with sizes and memory known before decoding.

mod gif;
mod header;
mod jpeg;
mod png;
mod timed;
mod webp;

pub use header::Header;

use crate::{Deadline, Error, Format, Limits, Result, RgbImage};

/// PDF readers accept files whose header is this far from the start.
const PDF_HEADER_WITHIN: usize = 1024;

impl Header {
    /// Reads the structure of an image file and checks the limits that need no pixels.
    ///
    /// Refuses files that are truncated, that are also another kind of file, and sizes and memory
    /// beyond the limits. What is ignored: colour profiles, text, later frames of animations.
    ///
    /// # Errors
    /// Those of an unsupported, damaged or too large image.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Header> {
        limits.check_file(bytes.len())?;
        let format = Format::sniff(bytes)?;
        let head = &bytes[..bytes.len().min(PDF_HEADER_WITHIN)];
        if header::contains(head, b"%PDF-") {
            return Err(Error::Polyglot { format, what: "is also a PDF document".into() });
        }
        let mut header = match format {
            Format::Png => png::read_header(bytes),
            Format::Jpeg => jpeg::read_header(bytes),
            Format::WebP => webp::read_header(bytes),
            Format::Gif => gif::read_header(bytes),
        }?;
        if header.stored_width == 0 || header.stored_height == 0 {
            return Err(Error::damaged(format, "its width or height is zero"));
        }
        limits.check_size(header.stored_width, header.stored_height)?;
        if header.orientation.swaps_sides() {
            let (width, height) = header.size();
            header.decode_memory += 3 * u64::from(width) * u64::from(height);
        }
        limits.check_memory(header.decode_memory)?;
        Ok(header)
    }
}

/// Decodes an image file whose header was read from the same bytes, and turns it upright.
///
/// Alpha is dropped, not blended; palettes and grey become RGB; 16 bits become 8 as Pillow does it:
/// colours keep their high byte, grey values above 255 become white.
///
/// # Errors
/// A damaged file, or the deadline passed.
pub fn decode(bytes: &[u8], header: &Header, deadline: Deadline) -> Result<RgbImage> {
    deadline.check()?;
    let decoded = match header.format {
        Format::Png => png::decode(bytes, deadline),
        Format::Jpeg => jpeg::decode(bytes, deadline),
        Format::WebP => webp::decode(bytes, deadline),
        Format::Gif => gif::decode(bytes, deadline),
    };
    // Readers report a passed deadline to decoders as an I/O error.
    let image = decoded.or_else(|error| deadline.check().and(Err(error)))?;
    if (image.width, image.height) != (header.stored_width, header.stored_height) {
        return Err(Error::damaged(header.format, "its parts state different sizes"));
    }
    deadline.check()?;
    Ok(header.orientation.apply(image))
}
