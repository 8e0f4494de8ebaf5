//! What the structure of an image file states.

use crate::{Error, Format, Orientation, Result};

/// What the structure of an image file states, read without decoding pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The file's format, from its first bytes.
    pub format: Format,
    /// Width in pixels as stored, before the orientation is applied.
    pub stored_width: u32,
    /// Height in pixels as stored, before the orientation is applied.
    pub stored_height: u32,
    /// How the stored pixels are turned.
    pub orientation: Orientation,
    /// Maximum bytes in memory while the file is decoded, with the decoded pixels.
    pub decode_memory: u64,
}

impl Header {
    /// Width and height for display.
    pub fn size(&self) -> (u32, u32) {
        self.orientation.oriented_size(self.stored_width, self.stored_height)
    }
}

/// Refuses bytes after the end of an image, except padding with zeros.
pub(super) fn refuse_trailing(format: Format, rest: &[u8]) -> Result<()> {
    if rest.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let what = format!("is followed by {} bytes that are not part of it", rest.len());
    Err(Error::Polyglot { format, what })
}

pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
