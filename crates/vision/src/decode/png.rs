//! PNG: the chunks that state size and orientation, and rows to RGB.

use std::io::Cursor;

use png::{BitDepth, ColorType};

use super::header::{self, Header};
use crate::{Deadline, Error, Format, Orientation, Result, RgbImage, read::Reader};

/// Deflate's highest ratio of decompressed to compressed bytes.
const MAX_DEFLATE_RATIO: u64 = 1032;
const XMP_KEYWORD: &[u8] = b"XML:com.adobe.xmp\0";
/// Column and row of the first pixel of each pass, and the steps to the next ones.
const ADAM7: [(usize, usize, usize, usize); 7] =
    [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)];

pub(crate) fn read_header(bytes: &[u8]) -> Result<Header> {
    let mut reader = Reader::new(Format::Png, bytes);
    reader.skip(8)?;
    let mut size = None;
    let (mut exif, mut xmp, mut data_bytes) = (None, None, 0);
    loop {
        let length = reader.u32_be()? as usize;
        let kind = reader.take(4)?;
        let content = reader.take(length)?;
        reader.skip(4)?;
        match kind {
            b"IHDR" if size.is_none() => size = Some(read_ihdr(content)?),
            _ if size.is_none() => return Err(damaged("its first chunk is not IHDR")),
            b"IDAT" => data_bytes += content.len() as u64,
            b"eXIf" => exif = exif.or(Some(content)),
            b"iTXt" => xmp = xmp.or(content.strip_prefix(XMP_KEYWORD)),
            b"IEND" => break,
            _ => {}
        }
    }
    header::refuse_trailing(Format::Png, reader.rest())?;
    let (width, height, bits) = size.ok_or_else(|| damaged("it has no IHDR chunk"))?;
    let row_bytes = (u64::from(width) * bits).div_ceil(8) + 1;
    if row_bytes.saturating_mul(height.into()) > MAX_DEFLATE_RATIO * (data_bytes + 1) {
        return Err(damaged("its header states more pixels than its data can hold"));
    }
    let orientation = exif
        .and_then(Orientation::from_exif)
        .or_else(|| xmp.and_then(Orientation::from_xmp))
        .unwrap_or_default();
    Ok(Header {
        format: Format::Png,
        stored_width: width,
        stored_height: height,
        orientation,
        // Pixels, some rows of input and decompression windows.
        decode_memory: 3 * u64::from(width) * u64::from(height) + 8 * row_bytes + (1 << 20),
    })
}

/// Width, height and bits per pixel.
fn read_ihdr(content: &[u8]) -> Result<(u32, u32, u64)> {
    let mut reader = Reader::new(Format::Png, content);
    let (width, height) = (reader.u32_be()?, reader.u32_be()?);
    let (depth, color_type) = (reader.u8()?, reader.u8()?);
    let samples = match color_type {
        0 | 3 => 1,
        4 => 2,
        2 => 3,
        6 => 4,
        _ => return Err(damaged("its colour type is unknown")),
    };
    if width > i32::MAX as u32 || height > i32::MAX as u32 {
        return Err(damaged("its width or height is out of range"));
    }
    Ok((width, height, samples * u64::from(depth)))
}

pub(crate) fn decode(bytes: &[u8], deadline: Deadline) -> Result<RgbImage> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(failed)?;
    let info = reader.info();
    let (width, height, interlaced) = (info.width as usize, info.height as usize, info.interlaced);
    let (color_type, depth) = (info.color_type, info.bit_depth);
    let palette = info.palette.as_deref().map(<[u8]>::to_vec).unwrap_or_default();
    let size = (info.width, info.height);
    let mut next_row = |out: &mut Vec<u8>, width: usize| -> Result<()> {
        deadline.check()?;
        let row = reader.next_row().map_err(failed)?;
        let row = row.ok_or_else(|| damaged("it ends early"))?;
        append_rgb(row.data(), width, color_type, depth, &palette, out);
        Ok(())
    };
    let mut data = Vec::with_capacity(3 * width * height);
    if !interlaced {
        for _ in 0..height {
            next_row(&mut data, width)?;
        }
    } else {
        data.resize(3 * width * height, 0);
        let mut row = Vec::with_capacity(3 * width);
        for (left, top, right_by, down_by) in ADAM7 {
            let columns = width.saturating_sub(left).div_ceil(right_by);
            for y in (top..height).step_by(down_by).filter(|_| columns > 0) {
                row.clear();
                next_row(&mut row, columns)?;
                for (index, pixel) in row.as_chunks::<3>().0.iter().enumerate() {
                    let at = 3 * (y * width + left + index * right_by);
                    data[at..at + 3].copy_from_slice(pixel);
                }
            }
        }
    }
    Ok(RgbImage { width: size.0, height: size.1, data })
}

/// Appends a row of `width` pixels as RGB, without alpha.
fn append_rgb(
    row: &[u8],
    width: usize,
    color_type: ColorType,
    depth: BitDepth,
    palette: &[u8],
    out: &mut Vec<u8>,
) {
    let sixteen = depth == BitDepth::Sixteen;
    let start = out.len();
    match color_type {
        ColorType::Grayscale if sixteen => {
            // Pillow clips 16-bit grey to 8 bits; it does not scale.
            let clip = |value: &[u8; 2]| if value[0] == 0 { value[1] } else { u8::MAX };
            out.extend(row.as_chunks::<2>().0.iter().flat_map(|value| [clip(value); 3]));
        }
        ColorType::Grayscale => {
            let scale = u8::MAX / (u8::MAX >> (8 - depth as u8));
            for_each_sample(row, width, depth as u8, |sample| out.extend([sample * scale; 3]));
        }
        ColorType::Indexed => for_each_sample(row, width, depth as u8, |index| {
            let entry = palette.as_chunks::<3>().0.get(usize::from(index));
            out.extend(entry.copied().unwrap_or_default());
        }),
        ColorType::GrayscaleAlpha => {
            let step = if sixteen { 4 } else { 2 };
            out.extend(row.chunks_exact(step).flat_map(|pixel| [pixel[0]; 3]));
        }
        ColorType::Rgb if sixteen => {
            out.extend(row.as_chunks::<6>().0.iter().flat_map(|&[r, _, g, _, b, _]| [r, g, b]));
        }
        ColorType::Rgb => out.extend_from_slice(row),
        ColorType::Rgba if sixteen => {
            let pixels = row.as_chunks::<8>().0.iter();
            out.extend(pixels.flat_map(|&[r, _, g, _, b, ..]| [r, g, b]));
        }
        ColorType::Rgba => {
            out.extend(row.as_chunks::<4>().0.iter().flat_map(|&[r, g, b, _]| [r, g, b]));
        }
    }
    out.resize(start + 3 * width, 0);
}

/// Unpacks samples of 1, 2, 4 or 8 bits, the first in the highest bits.
fn for_each_sample(row: &[u8], width: usize, bits: u8, mut sample: impl FnMut(u8)) {
    let per_byte = usize::from(8 / bits);
    let mask = u8::MAX >> (8 - bits);
    for index in 0..width.min(row.len() * per_byte) {
        let shift = 8 - bits - bits * (index % per_byte) as u8;
        sample((row[index / per_byte] >> shift) & mask);
    }
}

fn failed(error: png::DecodingError) -> Error {
    damaged(&error.to_string())
}

fn damaged(reason: &str) -> Error {
    Error::damaged(Format::Png, reason)
}
