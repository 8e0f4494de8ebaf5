//! JPEG: the segments that state size, colours and orientation, and decoding by jpeg-decoder.
//!
//! Values of grey, 4:4:4, 4:2:2 and 4:2:0 files differ from libjpeg-turbo by at most 4 of 255: the
//! inverse transform and the interpolation of chroma round differently.

use std::io::BufReader;

use jpeg_decoder::{ColorTransform, Decoder, PixelFormat, UnsupportedFeature};

use super::{
    header::{self, Header},
    timed::{CHUNK, Timed},
};
use crate::{Deadline, Error, Format, Orientation, Result, RgbImage, read::Reader};

/// Encoders write about ten scans of a progressive file.
const MAX_SCANS: usize = 64;
/// Most blocks that all scans pass over. A block of a scan costs up to 350 ns even if it has no
/// data, so that the reader's deadline is not asked; ten scans of 50 megapixels with chroma at half
/// the width and height pass over 6 million.
const MAX_BLOCK_PASSES: u64 = 16 << 20;
const XMP_PREFIX: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
/// Signatures of what polyglots append. Other trailing bytes are common: cameras append further
/// pictures, gain maps, clips and data of their own.
const APPENDED: &[(&[u8], &str)] = &[
    (b"PK\x05\x06", "contains a ZIP archive"),
    (b"%PDF-", "contains a PDF document"),
    (b"Rar!\x1a\x07", "contains a RAR archive"),
    (b"7z\xbc\xaf\x27\x1c", "contains a 7z archive"),
    (b"<?php", "contains a script"),
    (b"<script", "contains a script"),
    (b"<html", "contains an HTML document"),
    (b"<svg", "contains an SVG document"),
    (b"\x7fELF", "contains a program"),
];

/// What a frame header states.
#[derive(Clone, Copy)]
struct FrameHeader {
    width: u16,
    height: u16,
    /// Identifiers of the components, and their samples in the smallest unit that is coded.
    components: [(u8, u64); 3],
    /// Pixels of that unit.
    unit_pixels: u64,
    progressive: bool,
}

impl FrameHeader {
    /// Samples of the components that are chosen by their identifiers.
    fn samples(&self, is_chosen: impl Fn(u8) -> bool) -> u64 {
        let width = u64::from(self.width).next_multiple_of(64);
        let height = u64::from(self.height).next_multiple_of(64);
        let chosen = self.components.iter().filter(|(identifier, _)| is_chosen(*identifier));
        let in_unit: u64 = chosen.map(|(_, samples)| samples).sum();
        (width * height * in_unit).div_ceil(self.unit_pixels)
    }
}

/// The structure of a file.
#[derive(Default)]
struct Segments<'a> {
    frame: Option<FrameHeader>,
    exif: Option<&'a [u8]>,
    xmp: Option<&'a [u8]>,
    /// What was found before the first scan: a JFIF segment, the transform of an Adobe segment.
    jfif: bool,
    adobe_transform: Option<u8>,
    num_scans: usize,
    block_passes: u64,
}

pub(crate) fn read_header(bytes: &[u8]) -> Result<Header> {
    let mut reader = Reader::new(Format::Jpeg, bytes);
    let segments = read_segments(&mut reader)?;
    let frame = segments.frame.ok_or_else(|| damaged("it has no frame header"))?;
    if segments.num_scans > MAX_SCANS {
        return Err(unsupported(format!("has {} scans", segments.num_scans)));
    }
    if segments.block_passes > MAX_BLOCK_PASSES {
        return Err(unsupported(format!("has {} scans, too many for its size", segments.num_scans)));
    }
    let appended = APPENDED.iter().find(|(signature, _)| header::contains(reader.rest(), signature));
    if let Some((_, what)) = appended {
        return Err(Error::Polyglot { format: Format::Jpeg, what: (*what).into() });
    }
    let orientation = segments
        .exif
        .and_then(Orientation::from_exif)
        .or_else(|| segments.xmp.and_then(Orientation::from_xmp))
        .unwrap_or_default();
    Ok(Header {
        format: Format::Jpeg,
        stored_width: frame.width.into(),
        stored_height: frame.height.into(),
        orientation,
        // The decoder copies metadata, which may be most of the file.
        decode_memory: memory(frame) + bytes.len() as u64,
    })
}

/// Reads all segments up to the end of the image, over the data of every scan.
fn read_segments<'a>(reader: &mut Reader<'a>) -> Result<Segments<'a>> {
    let mut segments = Segments::default();
    reader.skip(2)?;
    loop {
        let marker = read_marker(reader)?;
        if marker == 0xd9 {
            return Ok(segments);
        }
        // Markers without a segment.
        if matches!(marker, 0x01 | 0xd0..=0xd8) {
            continue;
        }
        let length = usize::from(reader.u16_be()?);
        let content = length.checked_sub(2).ok_or_else(|| damaged("a segment is too short"))?;
        let content = reader.take(content)?;
        match marker {
            0xc0..=0xc2 if segments.frame.is_none() => {
                segments.frame = Some(read_frame(content, marker == 0xc2)?);
            }
            0xc0..=0xc2 => return Err(damaged("it has two frame headers")),
            0xc3 | 0xc5..=0xc7 => return Err(unsupported("is lossless or hierarchical".into())),
            0xc9..=0xcb | 0xcd..=0xcf => return Err(unsupported("is arithmetic-coded".into())),
            0xe0 if segments.num_scans == 0 => {
                segments.jfif |= content.len() >= 14 && content.starts_with(b"JFIF\0");
            }
            0xee if segments.num_scans == 0 && content.starts_with(b"Adobe") => {
                segments.adobe_transform = content.get(11).copied().or(segments.adobe_transform);
            }
            0xe1 if content.starts_with(b"Exif\0\0") => {
                segments.exif = segments.exif.or(Some(content));
            }
            0xe1 => segments.xmp = segments.xmp.or(content.strip_prefix(XMP_PREFIX)),
            0xda => {
                segments.num_scans += 1;
                segments.block_passes += block_passes(segments.frame, content)?;
                skip_entropy_coded(reader)?;
            }
            _ => {}
        }
    }
}

/// Blocks that a scan with this header passes over.
fn block_passes(frame: Option<FrameHeader>, scan: &[u8]) -> Result<u64> {
    let frame = frame.ok_or_else(|| damaged("a scan comes before the frame header"))?;
    let mut reader = Reader::new(Format::Jpeg, scan);
    let count = reader.u8()?;
    let mut identifiers = vec![];
    for _ in 0..count {
        identifiers.push(reader.u8()?);
        reader.skip(1)?;
    }
    Ok(frame.samples(|identifier| identifiers.contains(&identifier)) / 64)
}

/// Reads a marker, with the fill bytes before it.
fn read_marker(reader: &mut Reader) -> Result<u8> {
    if reader.u8()? != 0xff {
        return Err(damaged("a marker is missing"));
    }
    loop {
        match reader.u8()? {
            0xff => {}
            0x00 => return Err(damaged("a marker is missing")),
            marker => return Ok(marker),
        }
    }
}

/// Stops before the marker that ends the data of a scan.
fn skip_entropy_coded(reader: &mut Reader) -> Result<()> {
    let rest = reader.rest();
    let mut at = 0;
    while let Some(found) = rest[at..].iter().position(|byte| *byte == 0xff) {
        at += found;
        match rest.get(at + 1) {
            // A stuffed byte, or a restart marker.
            Some(0x00 | 0xd0..=0xd7) => at += 2,
            Some(0xff) => at += 1,
            _ => return reader.skip(at),
        }
    }
    Err(damaged("it ends early"))
}

fn read_frame(content: &[u8], progressive: bool) -> Result<FrameHeader> {
    let mut reader = Reader::new(Format::Jpeg, content);
    let precision = reader.u8()?;
    let (height, width, components) = (reader.u16_be()?, reader.u16_be()?, reader.u8()?);
    if precision != 8 {
        return Err(unsupported(format!("has {precision} bits per sample")));
    }
    if height == 0 {
        return Err(unsupported("does not state its height in the frame header".into()));
    }
    if components != 1 && components != 3 {
        return Err(unsupported(format!("has {components} components")));
    }
    // A grey file has one component; the others have no samples.
    let (mut stated, mut widest, mut highest) = ([(0, 0); 3], 0, 0);
    for component in &mut stated[..components.into()] {
        let identifier = reader.u8()?;
        let factors = reader.u8()?;
        let (across, down) = (u64::from(factors >> 4), u64::from(factors & 15));
        if !(1..=4).contains(&across) || !(1..=4).contains(&down) {
            return Err(damaged("a sampling factor is not 1 to 4"));
        }
        *component = (identifier, across * down);
        (widest, highest) = (widest.max(across), highest.max(down));
        reader.skip(1)?;
    }
    Ok(FrameHeader { width, height, components: stated, unit_pixels: widest * highest, progressive })
}

/// Pixels, planes of samples and their coefficients, which wait for the decoder's threads. A
/// progressive file has the coefficients once more: all scans add to them.
fn memory(frame: FrameHeader) -> u64 {
    let pixels = 3 * u64::from(frame.width) * u64::from(frame.height);
    let samples = frame.samples(|_| true);
    let coefficients = if frame.progressive { 4 } else { 2 };
    pixels + (1 + coefficients) * samples + (1 << 20)
}

pub(crate) fn decode(bytes: &[u8], deadline: Deadline) -> Result<RgbImage> {
    let segments = read_segments(&mut Reader::new(Format::Jpeg, bytes))?;
    let mut decoder = Decoder::new(BufReader::with_capacity(CHUNK, Timed::new(bytes, deadline)));
    decoder.set_color_transform(color_transform(&segments));
    let samples = decoder.decode().map_err(decoder_error)?;
    let info = decoder.info().ok_or_else(|| damaged("it has no size"))?;
    let data = match info.pixel_format {
        PixelFormat::RGB24 => samples,
        PixelFormat::L8 => samples.into_iter().flat_map(|grey| [grey; 3]).collect(),
        other => return Err(unsupported(format!("has pixels of the kind {other:?}"))),
    };
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    if data.len() as u64 != 3 * u64::from(width) * u64::from(height) {
        return Err(damaged("it has too few pixels"));
    }
    Ok(RgbImage { width, height, data })
}

/// The colours of three components, by libjpeg's order of precedence.
fn color_transform(segments: &Segments) -> ColorTransform {
    let rgb = match segments.adobe_transform {
        _ if segments.jfif => false,
        Some(transform) => transform == 0,
        None => segments.frame.is_some_and(|frame| frame.components.map(|(name, _)| name) == *b"RGB"),
    };
    if rgb { ColorTransform::RGB } else { ColorTransform::YCbCr }
}

fn decoder_error(error: jpeg_decoder::Error) -> Error {
    match error {
        jpeg_decoder::Error::Unsupported(UnsupportedFeature::SubsamplingRatio) => {
            unsupported("has components whose widths or heights are no whole multiples".into())
        }
        error => damaged(&error.to_string()),
    }
}

fn unsupported(what: String) -> Error {
    let instead = "a baseline or progressive RGB or grey JPEG with 8 bits, or as PNG";
    Error::UnsupportedFeature { format: Format::Jpeg, what, instead }
}

fn damaged(reason: &str) -> Error {
    Error::damaged(Format::Jpeg, reason)
}
