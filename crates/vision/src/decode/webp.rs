//! WebP: the chunks that state size and orientation, and decoding by image-webp.

use image_webp::WebPDecoder;

use super::{
    header::{self, Header},
    timed::Timed,
};
use crate::{Deadline, Error, Format, Orientation, Result, RgbImage, read::Reader};

const ALPHA_FLAG: u8 = 0x10;

/// One frame: where it is on the canvas, and its chunks.
#[derive(Clone, Copy)]
struct WebPFrame<'a> {
    left: u32,
    top: u32,
    width: u32,
    height: u32,
    /// Chunks that hold the pixels, `ALPH` with `VP8 `, or `VP8L`, of an animation's frame.
    animated: Option<&'a [u8]>,
}

/// The structure of a file.
struct Structure<'a> {
    canvas: (u32, u32),
    frame: WebPFrame<'a>,
    orientation: Orientation,
}

/// Reads the chunks of a RIFF container.
fn read_structure(bytes: &[u8]) -> Result<Structure<'_>> {
    let mut reader = Reader::new(Format::WebP, bytes);
    reader.skip(4)?;
    let length = reader.u32_le()? as usize;
    let content = reader.take(length)?;
    // A chunk of odd length is padded; some encoders do not count the padding.
    header::refuse_trailing(Format::WebP, reader.rest())?;
    let mut chunks = Reader::new(Format::WebP, content);
    chunks.skip(4)?;
    let (mut canvas, mut frame) = (None, None);
    let (mut exif, mut xmp) = (None, None);
    while !chunks.rest().is_empty() {
        let (kind, content) = read_chunk(&mut chunks)?;
        match kind {
            b"VP8X" => canvas = canvas.or(Some(read_canvas(content)?)),
            b"VP8 " | b"VP8L" if frame.is_none() => frame = Some(read_still(kind, content)?),
            b"ANMF" if frame.is_none() => frame = Some(read_animated(content)?),
            b"EXIF" => exif = exif.or(Some(content)),
            b"XMP " => xmp = xmp.or(Some(content)),
            _ => {}
        }
    }
    let frame = frame.ok_or_else(|| damaged("it has no frame"))?;
    let canvas = canvas.unwrap_or((frame.width, frame.height));
    if frame.left + frame.width > canvas.0 || frame.top + frame.height > canvas.1 {
        return Err(damaged("its first frame reaches beyond the canvas"));
    }
    let orientation = exif
        .and_then(Orientation::from_exif)
        .or_else(|| xmp.and_then(Orientation::from_xmp))
        .unwrap_or_default();
    Ok(Structure { canvas, frame, orientation })
}

fn read_chunk<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8])> {
    let kind = reader.take(4)?;
    let length = reader.u32_le()? as usize;
    let content = reader.take(length)?;
    if length % 2 == 1 && !reader.rest().is_empty() {
        reader.skip(1)?;
    }
    Ok((kind, content))
}

fn read_u24(reader: &mut Reader) -> Result<u32> {
    Ok(u32::from(reader.u16_le()?) | u32::from(reader.u8()?) << 16)
}

fn read_canvas(content: &[u8]) -> Result<(u32, u32)> {
    let mut reader = Reader::new(Format::WebP, content);
    reader.skip(4)?;
    Ok((read_u24(&mut reader)? + 1, read_u24(&mut reader)? + 1))
}

/// Reads the size that a bitstream states.
fn read_still<'a>(kind: &[u8], content: &[u8]) -> Result<WebPFrame<'a>> {
    let mut reader = Reader::new(Format::WebP, content);
    let (width, height) = if kind == b"VP8L" {
        if reader.u8()? != 0x2f {
            return Err(damaged("its lossless data has no signature"));
        }
        let bits = reader.u32_le()?;
        ((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1)
    } else {
        reader.skip(3)?;
        if reader.take(3)? != [0x9d, 0x01, 0x2a] {
            return Err(damaged("its lossy data has no signature"));
        }
        (u32::from(reader.u16_le()? & 0x3fff), u32::from(reader.u16_le()? & 0x3fff))
    };
    Ok(WebPFrame { left: 0, top: 0, width, height, animated: None })
}

fn read_animated(content: &[u8]) -> Result<WebPFrame<'_>> {
    let mut reader = Reader::new(Format::WebP, content);
    let (left, top) = (2 * read_u24(&mut reader)?, 2 * read_u24(&mut reader)?);
    let (width, height) = (read_u24(&mut reader)? + 1, read_u24(&mut reader)? + 1);
    reader.skip(4)?;
    Ok(WebPFrame { left, top, width, height, animated: Some(reader.rest()) })
}

pub(crate) fn read_header(bytes: &[u8]) -> Result<Header> {
    let Structure { canvas: (width, height), frame, orientation } = read_structure(bytes)?;
    let canvas = u64::from(width) * u64::from(height);
    let pixels = u64::from(frame.width) * u64::from(frame.height);
    Ok(Header {
        format: Format::WebP,
        stored_width: width,
        stored_height: height,
        orientation,
        // The canvas; of the frame RGBA pixels, planes or transforms, and alpha.
        decode_memory: 3 * canvas + 12 * pixels + 2 * bytes.len() as u64 + (4 << 20),
    })
}

pub(crate) fn decode(bytes: &[u8], deadline: Deadline) -> Result<RgbImage> {
    let Structure { canvas, frame, .. } = read_structure(bytes)?;
    let Some(chunks) = frame.animated else {
        return decode_still(bytes, deadline);
    };
    let image = decode_still(&still_file(chunks, frame)?, deadline)?;
    if (image.width, image.height) != (frame.width, frame.height) {
        return Err(damaged("its parts state different sizes"));
    }
    if (image.width, image.height) == canvas {
        return Ok(image);
    }
    let mut data = vec![0; 3 * canvas.0 as usize * canvas.1 as usize];
    let rows = data.chunks_exact_mut(3 * canvas.0 as usize).skip(frame.top as usize);
    for (row, source) in rows.zip(image.data.chunks_exact(3 * frame.width as usize)) {
        row[3 * frame.left as usize..][..source.len()].copy_from_slice(source);
    }
    Ok(RgbImage { width: canvas.0, height: canvas.1, data })
}

/// A file with one still image made of a frame's chunks. The decoder would blend the frame with the
/// background; libwebp, which others use, does not.
fn still_file(chunks: &[u8], frame: WebPFrame) -> Result<Vec<u8>> {
    let mut file = b"RIFF\0\0\0\0WEBP".to_vec();
    let mut reader = Reader::new(Format::WebP, chunks);
    while !reader.rest().is_empty() {
        let (kind, content) = read_chunk(&mut reader)?;
        if kind == b"ALPH" {
            append_chunk(&mut file, b"VP8X", &extended_header(frame));
        }
        if matches!(kind, b"ALPH" | b"VP8 " | b"VP8L") {
            append_chunk(&mut file, kind, content);
        }
    }
    let length = (file.len() - 8) as u32;
    file[4..8].copy_from_slice(&length.to_le_bytes());
    Ok(file)
}

fn extended_header(frame: WebPFrame) -> [u8; 10] {
    let [w0, w1, w2, _] = (frame.width - 1).to_le_bytes();
    let [h0, h1, h2, _] = (frame.height - 1).to_le_bytes();
    [ALPHA_FLAG, 0, 0, 0, w0, w1, w2, h0, h1, h2]
}

fn append_chunk(file: &mut Vec<u8>, kind: &[u8], content: &[u8]) {
    file.extend_from_slice(kind);
    file.extend((content.len() as u32).to_le_bytes());
    file.extend_from_slice(content);
    if content.len() % 2 == 1 {
        file.push(0);
    }
}

fn decode_still(bytes: &[u8], deadline: Deadline) -> Result<RgbImage> {
    let failed = |error: image_webp::DecodingError| damaged(&error.to_string());
    let mut decoder = WebPDecoder::new(Timed::new(bytes, deadline)).map_err(failed)?;
    let (width, height) = decoder.dimensions();
    let pixels = width as usize * height as usize;
    let mut data = vec![0; pixels * if decoder.has_alpha() { 4 } else { 3 }];
    decoder.read_image(&mut data).map_err(failed)?;
    if decoder.has_alpha() {
        for pixel in 0..pixels {
            data.copy_within(4 * pixel..4 * pixel + 3, 3 * pixel);
        }
        data.truncate(3 * pixels);
    }
    Ok(RgbImage { width, height, data })
}

fn damaged(reason: &str) -> Error {
    Error::damaged(Format::WebP, reason)
}
