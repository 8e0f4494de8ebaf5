//! Reads numbers and runs of bytes from the structure of an image file.

use crate::{Error, Format, Result};

/// A position in the bytes of an image file; reading past the end is an error of that format.
pub(crate) struct Reader<'a> {
    format: Format,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(format: Format, bytes: &'a [u8]) -> Reader<'a> {
        Reader { format, rest: bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(length) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(Error::damaged(self.format, "it ends early")),
        }
    }

    pub(crate) fn skip(&mut self, length: usize) -> Result<()> {
        self.take(length).map(|_| ())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        Ok(std::array::from_fn(|index| taken[index]))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16_le(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u16_be(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32_le(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u32_be(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }
}
