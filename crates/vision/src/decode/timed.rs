//! A reader over bytes in memory that fails once a deadline has passed.

use std::io::{self, BufRead, Cursor, ErrorKind, Read, Seek, SeekFrom};

use crate::Deadline;

/// Small enough that a decoder asks for time often.
pub(super) const CHUNK: usize = 16 << 10;

/// Bytes with a deadline; decoders without one of their own fail at their next read.
pub(super) struct Timed<'a> {
    cursor: Cursor<&'a [u8]>,
    deadline: Deadline,
}

impl<'a> Timed<'a> {
    pub(super) fn new(bytes: &'a [u8], deadline: Deadline) -> Timed<'a> {
        Timed { cursor: Cursor::new(bytes), deadline }
    }

    fn check(&self) -> io::Result<()> {
        self.deadline.check().map_err(|error| io::Error::new(ErrorKind::TimedOut, error))
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.cursor.read(buffer)
    }
}

impl BufRead for Timed<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.check()?;
        let buffer = self.cursor.fill_buf()?;
        Ok(&buffer[..buffer.len().min(CHUNK)])
    }

    fn consume(&mut self, amount: usize) {
        self.cursor.consume(amount);
    }
}

impl Seek for Timed<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.cursor.seek(to)
    }
}
