//! Limits on untrusted images, checked before pixels are decoded, and a deadline.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Limits on untrusted images. All but the deadline are checked before any pixel is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of the encoded file.
    pub max_file_bytes: u64,
    /// Maximum width and height in pixels.
    pub max_side: u32,
    /// Maximum width times height.
    pub max_pixels: u64,
    /// Maximum bytes in memory while one image is decoded and preprocessed, as stated by
    /// [`crate::Header::decode_memory`] and [`crate::Processor::memory`]; the encoded file is not
    /// counted.
    pub max_memory: u64,
    /// Maximum time for decoding and preprocessing one image.
    pub timeout: Duration,
}

impl Default for Limits {
    /// 20 MiB of file, sides of 8,192 pixels, 50 megapixels, 512 MiB of memory, 10 seconds.
    fn default() -> Limits {
        Limits {
            max_file_bytes: 20 << 20,
            max_side: 8192,
            max_pixels: 50_000_000,
            max_memory: 512 << 20,
            timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
    pub(crate) fn check_file(&self, bytes: usize) -> Result<()> {
        within(bytes as u64, self.max_file_bytes, "bytes")
    }

    pub(crate) fn check_size(&self, width: u32, height: u32) -> Result<()> {
        within(width.into(), self.max_side.into(), "pixels of width")?;
        within(height.into(), self.max_side.into(), "pixels of height")?;
        within(u64::from(width) * u64::from(height), self.max_pixels, "pixels")
    }

    pub(crate) fn check_memory(&self, bytes: u64) -> Result<()> {
        within(bytes, self.max_memory, "bytes of decoded data")
    }

    /// The deadline of an image whose decoding begins now.
    pub fn deadline(&self) -> Deadline {
        Deadline(Instant::now().checked_add(self.timeout))
    }
}

fn within(found: u64, limit: u64, unit: &'static str) -> Result<()> {
    if found <= limit { Ok(()) } else { Err(Error::TooLarge { found, limit, unit }) }
}

/// The time at which work on an image is given up.
///
/// It is checked between stages, between rows of PNG and GIF, and at reads of the JPEG and WebP
/// decoders; a stage in between takes time in proportion to the pixels, which are limited.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// # Errors
    /// [`Error::DeadlineExceeded`] once the time is over.
    pub fn check(self) -> Result<()> {
        match self.0 {
            Some(end) if Instant::now() >= end => Err(Error::DeadlineExceeded),
            _ => Ok(()),
        }
    }
}
