//! GIF: the first frame on its canvas. Later frames are only walked over.

use super::header::{self, Header};
use crate::{Deadline, Error, Format, Orientation, Result, RgbImage, read::Reader};

const EXTENSION: u8 = 0x21;
const GRAPHIC_CONTROL: u8 = 0xf9;
const IMAGE: u8 = 0x2c;
const TRAILER: u8 = 0x3b;
/// LZW codes have at most twelve bits.
const MAX_CODES: usize = 4096;

/// The first frame: where it is, and what its indices mean.
struct GifFrame<'a> {
    canvas: (u32, u32),
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    interlaced: bool,
    palette: Option<&'a [u8]>,
    transparent: Option<u8>,
    min_code_bits: u8,
}

/// Reads everything before the compressed data of the first frame.
fn read_frame<'a>(reader: &mut Reader<'a>) -> Result<GifFrame<'a>> {
    reader.skip(6)?;
    let (screen_width, screen_height) = (reader.u16_le()?, reader.u16_le()?);
    let global = read_palette(reader, 2)?;
    let mut transparent = None;
    loop {
        match reader.u8()? {
            EXTENSION => {
                let label = reader.u8()?;
                if let (GRAPHIC_CONTROL, [4, flags, _, _, index, ..]) = (label, reader.rest()) {
                    transparent = (flags & 1 == 1).then_some(*index);
                }
                skip_sub_blocks(reader)?;
            }
            IMAGE => break,
            TRAILER => return Err(damaged("it has no frame")),
            _ => return Err(damaged("a block has an unknown type")),
        }
    }
    let [left, top, width, height] = [reader.u16_le()?, reader.u16_le()?, reader.u16_le()?, reader.u16_le()?];
    let flags = reader.rest().first().copied().unwrap_or(0);
    let palette = read_palette(reader, 0)?.or(global);
    // A frame that reaches beyond the screen enlarges it.
    let canvas_width = u32::from(screen_width).max(u32::from(left) + u32::from(width));
    let canvas_height = u32::from(screen_height).max(u32::from(top) + u32::from(height));
    if width == 0 || height == 0 {
        return Err(damaged("its first frame is empty"));
    }
    Ok(GifFrame {
        canvas: (canvas_width, canvas_height),
        left: left.into(),
        top: top.into(),
        width: width.into(),
        height: height.into(),
        interlaced: flags & 0x40 != 0,
        palette,
        transparent,
        min_code_bits: reader.u8()?,
    })
}

/// Reads the flags of a palette, skips `skip` bytes after them, and reads the palette if it exists.
fn read_palette<'a>(reader: &mut Reader<'a>, skip: usize) -> Result<Option<&'a [u8]>> {
    let flags = reader.u8()?;
    reader.skip(skip)?;
    match flags & 0x80 {
        0 => Ok(None),
        _ => reader.take(3 << ((flags & 7) + 1)).map(Some),
    }
}

fn skip_sub_blocks(reader: &mut Reader) -> Result<()> {
    while let length @ 1.. = reader.u8()? {
        reader.skip(length.into())?;
    }
    Ok(())
}

pub(crate) fn read_header(bytes: &[u8]) -> Result<Header> {
    let mut reader = Reader::new(Format::Gif, bytes);
    let frame = read_frame(&mut reader)?;
    check_end(&mut reader)?;
    let (width, height) = frame.canvas;
    let canvas = 3 * u64::from(width) * u64::from(height);
    Ok(Header {
        format: Format::Gif,
        stored_width: width,
        stored_height: height,
        orientation: Orientation::Normal,
        decode_memory: canvas + (frame.width * frame.height) as u64 + (64 << 10),
    })
}

/// Walks to the trailer: nothing may follow it. A file that ends in a later frame is accepted.
fn check_end(reader: &mut Reader) -> Result<()> {
    if skip_sub_blocks(reader).is_err() {
        return Ok(());
    }
    loop {
        let rest = reader.rest();
        let walked = match reader.u8() {
            Ok(EXTENSION) => reader.skip(1),
            Ok(IMAGE) => reader.skip(8).and_then(|()| read_palette(reader, 0)).and_then(|_| reader.skip(1)),
            Ok(TRAILER) => return header::refuse_trailing(Format::Gif, reader.rest()),
            Ok(_) => return header::refuse_trailing(Format::Gif, rest),
            Err(_) => return Ok(()),
        };
        if walked.and_then(|()| skip_sub_blocks(reader)).is_err() {
            return Ok(());
        }
    }
}

pub(crate) fn decode(bytes: &[u8], deadline: Deadline) -> Result<RgbImage> {
    let mut reader = Reader::new(Format::Gif, bytes);
    let frame = read_frame(&mut reader)?;
    let indices = decode_lzw(&mut reader, &frame, deadline)?;
    let (width, height) = frame.canvas;
    let mut data = Vec::with_capacity(3 * width as usize * height as usize);
    let background = color(frame.palette, frame.transparent.unwrap_or(0));
    for y in 0..height as usize {
        deadline.check()?;
        let start = data.len();
        let row = y.checked_sub(frame.top).filter(|row| *row < frame.height);
        data.extend(std::iter::repeat_n(background, width as usize).flatten());
        if let Some(row) = row {
            let row = if frame.interlaced { interlaced_row(row, frame.height) } else { row };
            let indices = &indices[row * frame.width..][..frame.width];
            let target = &mut data[start + 3 * frame.left..][..3 * frame.width];
            for (pixel, index) in target.as_chunks_mut::<3>().0.iter_mut().zip(indices) {
                *pixel = color(frame.palette, *index);
            }
        }
    }
    Ok(RgbImage { width, height, data })
}

/// A file without palettes is grey; so are indices beyond a palette.
fn color(palette: Option<&[u8]>, index: u8) -> [u8; 3] {
    let entry = palette.and_then(|palette| palette.as_chunks::<3>().0.get(usize::from(index)));
    entry.copied().unwrap_or([index; 3])
}

/// The position in the file of a row of an interlaced frame.
fn interlaced_row(row: usize, height: usize) -> usize {
    let eighths = height.div_ceil(8);
    let quarters = (height + 3) / 8;
    let halves = (height + 1) / 4;
    match row % 8 {
        0 => row / 8,
        4 => eighths + row / 8,
        2 | 6 => eighths + quarters + row / 4,
        _ => eighths + quarters + halves + row / 2,
    }
}

/// A dictionary of byte strings: each is a shorter one and a last byte.
struct Dictionary {
    prefix: [u16; MAX_CODES],
    last: [u8; MAX_CODES],
    length: [u16; MAX_CODES],
    size: usize,
}

impl Dictionary {
    /// Single bytes, a code that clears the dictionary, and one that ends the frame.
    fn new(clear: usize) -> Dictionary {
        Dictionary {
            prefix: [0; MAX_CODES],
            last: std::array::from_fn(|code| if code < clear { code as u8 } else { 0 }),
            length: [0; MAX_CODES],
            size: clear + 2,
        }
    }

    /// Appends the string of `code` to `out`, at most up to `limit` bytes of `out`, and returns its
    /// first byte.
    fn append(&self, code: usize, out: &mut Vec<u8>, limit: usize) -> u8 {
        let start = out.len();
        let length = usize::from(self.length[code]) + 1;
        out.resize(start + length, 0);
        let mut code = code;
        for place in out[start..].iter_mut().rev() {
            *place = self.last[code];
            code = usize::from(self.prefix[code]);
        }
        let first = out[start];
        out.truncate(limit);
        first
    }

    fn add(&mut self, prefix: usize, last: u8) {
        if self.size < MAX_CODES {
            self.prefix[self.size] = prefix as u16;
            self.last[self.size] = last;
            self.length[self.size] = self.length[prefix] + 1;
            self.size += 1;
        }
    }
}

/// Reads codes from sub-blocks, the first in the lowest bits.
struct CodeReader<'a, 'b> {
    reader: &'b mut Reader<'a>,
    deadline: Deadline,
    block: &'a [u8],
    bits: u32,
    num_bits: u32,
}

impl CodeReader<'_, '_> {
    fn next(&mut self, width: u32) -> Result<usize> {
        while self.num_bits < width {
            if self.block.is_empty() {
                self.deadline.check()?;
                let length = self.reader.u8()?.into();
                self.block = self.reader.take(length)?;
            }
            let Some((byte, rest)) = self.block.split_first() else {
                return Err(damaged("its first frame ends early"));
            };
            self.bits |= u32::from(*byte) << self.num_bits;
            self.num_bits += 8;
            self.block = rest;
        }
        let code = self.bits & ((1 << width) - 1);
        self.bits >>= width;
        self.num_bits -= width;
        Ok(code as usize)
    }
}

fn decode_lzw(reader: &mut Reader, frame: &GifFrame, deadline: Deadline) -> Result<Vec<u8>> {
    let min_bits = u32::from(frame.min_code_bits);
    if !(1..=11).contains(&min_bits) {
        return Err(damaged("its code size is not between 1 and 11 bits"));
    }
    let clear = 1_usize << min_bits;
    let mut dictionary = Dictionary::new(clear);
    let mut codes = CodeReader { reader, deadline, block: &[], bits: 0, num_bits: 0 };
    let wanted = frame.width * frame.height;
    let mut out = Vec::with_capacity(wanted + MAX_CODES);
    let mut width = min_bits + 1;
    let mut previous = None;
    while out.len() < wanted {
        let code = codes.next(width)?;
        if code == clear {
            (dictionary.size, width, previous) = (clear + 2, min_bits + 1, None);
            continue;
        }
        if code == clear + 1 {
            return Err(damaged("its first frame ends early"));
        }
        match previous {
            None if code < clear => out.push(code as u8),
            Some(previous) if code < dictionary.size => {
                let first = dictionary.append(code, &mut out, wanted);
                dictionary.add(previous, first);
            }
            // The string that this code adds: the previous one and its own first byte.
            Some(previous) if code == dictionary.size && code < MAX_CODES => {
                let first = dictionary.append(previous, &mut out, wanted);
                dictionary.add(previous, first);
                if out.len() < wanted {
                    out.push(first);
                }
            }
            _ => return Err(damaged("its first frame has an undefined code")),
        }
        previous = Some(code);
        if dictionary.size == 1 << width && width < 12 {
            width += 1;
        }
    }
    Ok(out)
}

fn damaged(reason: &str) -> Error {
    Error::damaged(Format::Gif, reason)
}
