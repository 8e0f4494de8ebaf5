//! WebP: the chunks that state size and orientation, and decoding by image-webp.

use image_webp::WebPDecoder;

use super::{
    header::{self, Header},
    timed::Timed,
};
use crate::{Deadline, Error, Format, Orientation, Result, RgbImage, read::Reader};

const ALPHA_FLAG: u8 = 0x10;
const ANIMATION_FLAG: u8 = 0x02;
const PARTS_DIFFER: &str = "its parts state different sizes";

/// The bitstream of one image, and its alpha.
#[derive(Clone, Copy)]
struct Bitstream<'a> {
    /// `VP8 ` or `VP8L`.
    kind: &'a [u8],
    data: &'a [u8],
    /// The content of an `ALPH` chunk.
    alpha: Option<&'a [u8]>,
    width: u32,
    height: u32,
}

/// The only image of a file, or the first frame of its animation, and its place on the canvas.
#[derive(Clone, Copy)]
struct WebPFrame<'a> {
    left: u32,
    top: u32,
    bitstream: Bitstream<'a>,
}

/// The structure of a file.
struct Structure<'a> {
    canvas: (u32, u32),
    frame: WebPFrame<'a>,
    orientation: Orientation,
}

/// Fields of a `VP8X` chunk.
#[derive(Clone, Copy)]
struct Extended {
    is_animated: bool,
    canvas: (u32, u32),
}

/// Reads the chunks of a RIFF container. Only the chosen frame's chunks are decoded, so that its
/// size, which is checked, is what the decoder allocates.
fn read_structure(bytes: &[u8]) -> Result<Structure<'_>> {
    let mut reader = Reader::new(Format::WebP, bytes);
    reader.skip(4)?;
    let length = reader.u32_le()? as usize;
    let content = reader.take(length)?;
    // A chunk of odd length is padded; some encoders do not count the padding.
    header::refuse_trailing(Format::WebP, reader.rest())?;
    let content = content.strip_prefix(b"WEBP").ok_or_else(|| damaged("it has no signature"))?;
    let mut chunks = Reader::new(Format::WebP, content);
    let (mut extended, mut animated) = (None, None);
    let (mut exif, mut xmp) = (None, None);
    while !chunks.rest().is_empty() {
        let (kind, content) = read_chunk(&mut chunks)?;
        match kind {
            b"VP8X" if extended.is_none() => extended = Some(read_extended(content)?),
            b"ANMF" if animated.is_none() => animated = Some(content),
            b"EXIF" => exif = exif.or(Some(content)),
            b"XMP " => xmp = xmp.or(Some(content)),
            _ => {}
        }
    }
    let still = find_bitstream(content)?;
    let frame = match (extended.is_some_and(|extended| extended.is_animated), animated, still) {
        (true, Some(content), None) => read_animated(content)?,
        (false, None, Some(bitstream)) => WebPFrame { left: 0, top: 0, bitstream },
        (_, None, None) => return Err(damaged("it has no frame")),
        _ => return Err(damaged("it is neither a still image nor an animation")),
    };
    let Bitstream { width, height, .. } = frame.bitstream;
    let canvas = extended.map_or((width, height), |extended| extended.canvas);
    if frame.left + width > canvas.0 || frame.top + height > canvas.1 {
        return Err(damaged("its first frame reaches beyond the canvas"));
    }
    if still.is_some() && (width, height) != canvas {
        return Err(damaged(PARTS_DIFFER));
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

fn read_extended(content: &[u8]) -> Result<Extended> {
    let mut reader = Reader::new(Format::WebP, content);
    let is_animated = reader.u8()? & ANIMATION_FLAG != 0;
    reader.skip(3)?;
    Ok(Extended { is_animated, canvas: (read_u24(&mut reader)? + 1, read_u24(&mut reader)? + 1) })
}

/// The bitstream among chunks, with the size that it states itself.
fn find_bitstream(chunks: &[u8]) -> Result<Option<Bitstream<'_>>> {
    let mut reader = Reader::new(Format::WebP, chunks);
    let (mut alpha, mut found) = (None, None);
    while !reader.rest().is_empty() {
        let (kind, content) = read_chunk(&mut reader)?;
        match kind {
            b"ALPH" => alpha = alpha.or(Some(content)),
            b"VP8 " | b"VP8L" if found.is_some() => return Err(damaged("it has two images")),
            b"VP8 " | b"VP8L" => found = Some((kind, content, read_size(kind, content)?)),
            _ => {}
        }
    }
    Ok(found.map(|(kind, data, (width, height))| Bitstream {
        kind,
        data,
        // A lossless bitstream holds its own.
        alpha: alpha.filter(|_| kind == b"VP8 "),
        width,
        height,
    }))
}

/// Reads the size that a bitstream states.
fn read_size(kind: &[u8], content: &[u8]) -> Result<(u32, u32)> {
    let mut reader = Reader::new(Format::WebP, content);
    if kind == b"VP8L" {
        if reader.u8()? != 0x2f {
            return Err(damaged("its lossless data has no signature"));
        }
        let bits = reader.u32_le()?;
        return Ok(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1));
    }
    reader.skip(3)?;
    if reader.take(3)? != [0x9d, 0x01, 0x2a] {
        return Err(damaged("its lossy data has no signature"));
    }
    Ok((u32::from(reader.u16_le()? & 0x3fff), u32::from(reader.u16_le()? & 0x3fff)))
}

fn read_animated(content: &[u8]) -> Result<WebPFrame<'_>> {
    let mut reader = Reader::new(Format::WebP, content);
    let (left, top) = (2 * read_u24(&mut reader)?, 2 * read_u24(&mut reader)?);
    let size = (read_u24(&mut reader)? + 1, read_u24(&mut reader)? + 1);
    reader.skip(4)?;
    let bitstream = find_bitstream(reader.rest())?.ok_or_else(|| damaged("its first frame is empty"))?;
    if (bitstream.width, bitstream.height) != size {
        return Err(damaged(PARTS_DIFFER));
    }
    Ok(WebPFrame { left, top, bitstream })
}

pub(crate) fn read_header(bytes: &[u8]) -> Result<Header> {
    let Structure { canvas: (width, height), frame, orientation } = read_structure(bytes)?;
    let canvas = u64::from(width) * u64::from(height);
    let pixels = u64::from(frame.bitstream.width) * u64::from(frame.bitstream.height);
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
    let image = decode_still(&still_file(frame.bitstream), deadline)?;
    if (image.width, image.height) != (frame.bitstream.width, frame.bitstream.height) {
        return Err(damaged(PARTS_DIFFER));
    }
    if (image.width, image.height) == canvas {
        return Ok(image);
    }
    let mut data = vec![0; 3 * canvas.0 as usize * canvas.1 as usize];
    let rows = data.chunks_exact_mut(3 * canvas.0 as usize).skip(frame.top as usize);
    for (row, source) in rows.zip(image.data.chunks_exact(3 * image.width as usize)) {
        row[3 * frame.left as usize..][..source.len()].copy_from_slice(source);
    }
    Ok(RgbImage { width: canvas.0, height: canvas.1, data })
}

/// A file with this image alone. The decoder would blend an animation's frame with the background;
/// libwebp, which others use, does not.
fn still_file(bitstream: Bitstream) -> Vec<u8> {
    let mut file = b"RIFF\0\0\0\0WEBP".to_vec();
    if let Some(alpha) = bitstream.alpha {
        append_chunk(&mut file, b"VP8X", &extended_header(bitstream));
        append_chunk(&mut file, b"ALPH", alpha);
    }
    append_chunk(&mut file, bitstream.kind, bitstream.data);
    let length = (file.len() - 8) as u32;
    file[4..8].copy_from_slice(&length.to_le_bytes());
    file
}

fn extended_header(bitstream: Bitstream) -> [u8; 10] {
    let [w0, w1, w2, _] = (bitstream.width - 1).to_le_bytes();
    let [h0, h1, h2, _] = (bitstream.height - 1).to_le_bytes();
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
