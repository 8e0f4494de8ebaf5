//! Hostile files: each is refused with one sentence, without panics.

use std::time::Duration;

use lanner_vision::{Error, Header, Limits, decode};

use crate::support::{file, goldens, named_processor};

fn process(bytes: &[u8]) -> Result<(), Error> {
    let limits = Limits::default();
    let header = Header::read(bytes, &limits)?;
    decode(bytes, &header, limits.deadline()).map(|_| ())
}

#[track_caller]
fn check_refused(bytes: &[u8], expected: &str) {
    let error = process(bytes).expect_err("refused").to_string();
    assert!(error.contains(expected), "{error}");
}

/// A PNG of this size and kind with this compressed data; checksums are right.
fn png(width: u32, height: u32, color_type: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, color_type, 0, 0, 0]].concat();
    for (kind, content) in [(b"IHDR", &header[..]), (b"IDAT", data), (b"IEND", &b""[..])] {
        let body = [&kind[..], content].concat();
        bytes.extend((content.len() as u32).to_be_bytes());
        bytes.extend(&body);
        bytes.extend(crc32(&body).to_be_bytes());
    }
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 * (crc & 1)))
    })
}

#[test]
fn sizes_beyond_the_limits_are_refused_before_decoding() {
    check_refused(&png(10_000, 10, 2, &[0; 4000]), "10000 pixels of width, more than the limit of 8192");
    check_refused(&png(10, 10_000, 2, &[0; 4000]), "10000 pixels of height");
    check_refused(&png(8000, 8000, 2, &[0; 200_000]), "64000000 pixels, more than the limit of 50000000");
    check_refused(&png(0x7fff_ffff, 0x7fff_ffff, 2, &[]), "more pixels than its data can hold");
    check_refused(&png(0, 5, 2, &[]), "width or height is zero");
    let limits = Limits { max_file_bytes: 10, ..Limits::default() };
    let error = Header::read(&file("rgb_8.png"), &limits).unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 10, unit: "bytes", .. }), "{error}");
    let limits = Limits { max_memory: 1 << 20, ..Limits::default() };
    let error = named_processor("gemma3").process(&file("rgb_8.png"), &limits).unwrap_err();
    assert!(error.to_string().contains("bytes of decoded data"), "{error}");
}

#[test]
fn png_header_with_more_pixels_than_data_is_refused() {
    check_refused(&png(4000, 4000, 2, b"\x78\x9c\x03\x00\x00\x00\x00\x01"), "more pixels than its data");
    // Enough bytes for the ratio, but not for the pixels.
    check_refused(&png(40, 40, 2, b"\x78\x9c\x03\x00\x00\x00\x00\x01"), "PNG image is damaged");
}

#[test]
fn canvas_of_other_size_than_its_frame_is_refused() {
    let mut webp = file("lossy_alpha.webp");
    webp[24] += 8;
    check_refused(&webp, "the WebP image is damaged");
    let mut jpeg = file("444.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0x20, 0, 0x20, 0]);
    assert!(process(&jpeg).is_err());
}

/// A RIFF chunk.
fn chunk(kind: &[u8], content: &[u8]) -> Vec<u8> {
    let padding = &[0][..content.len() % 2];
    [kind, &(content.len() as u32).to_le_bytes(), content, padding].concat()
}

fn webp(chunks: &[Vec<u8>]) -> Vec<u8> {
    chunk(b"RIFF", &[b"WEBP".to_vec(), chunks.concat()].concat())
}

/// A lossless bitstream of one colour: any size in 20 bytes.
fn vp8l(width: u32, height: u32) -> Vec<u8> {
    let (mut bits, mut length) = (0_u128, 0);
    let mut push = |value: u32, count: u32| {
        bits |= u128::from(value) << length;
        length += count;
    };
    // No alpha, no transforms, no colour cache, no groups of codes.
    for (value, count) in [(0x2f, 8), (width - 1, 14), (height - 1, 14), (0, 4), (0, 3)] {
        push(value, count);
    }
    // Five codes of one symbol each.
    for symbol in [10, 20, 30, 255, 0] {
        for (value, count) in [(1, 1), (0, 1), (1, 1), (symbol, 8)] {
            push(value, count);
        }
    }
    chunk(b"VP8L", &[&bits.to_le_bytes()[..], &[0; 4]].concat())
}

fn vp8x(flags: u8, width: u32, height: u32) -> Vec<u8> {
    chunk(b"VP8X", &[&[flags, 0, 0, 0], &u24(width - 1)[..], &u24(height - 1)].concat())
}

fn anmf(width: u32, height: u32, bitstream: &[u8]) -> Vec<u8> {
    let place = [0; 6];
    chunk(b"ANMF", &[&place[..], &u24(width - 1), &u24(height - 1), &[100, 0, 0, 0], bitstream].concat())
}

fn u24(value: u32) -> [u8; 3] {
    let [low, middle, high, _] = value.to_le_bytes();
    [low, middle, high]
}

#[test]
fn webp_frame_with_a_larger_bitstream_is_refused_before_decoding() {
    const ANIMATION: u8 = 2;
    let animated = |inner: &[u8]| webp(&[vp8x(ANIMATION, 8, 8), chunk(b"ANIM", &[0; 6]), anmf(8, 8, inner)]);
    assert_eq!(process(&animated(&vp8l(8, 8))), Ok(()));
    let limits = Limits::default();
    for file in [
        animated(&vp8l(8000, 6000)),
        animated(&vp8l(16383, 16383)),
        webp(&[vp8x(0, 8, 8), vp8l(8000, 6000)]),
        webp(&[vp8x(0, 8000, 6000), vp8l(8, 8)]),
    ] {
        let error = Header::read(&file, &limits).expect_err("refused").to_string();
        assert!(error.contains("state different sizes") || error.contains("beyond the canvas"), "{error}");
    }
}

#[test]
fn webp_with_two_images_to_choose_from_is_refused() {
    let (small, large) = (vp8l(8, 8), vp8l(8000, 6000));
    let anim = || chunk(b"ANIM", &[0; 6]);
    for file in [
        // The header would describe one image, and the decoder would choose the other.
        webp(&[vp8x(2, 8000, 6000), small.clone(), anim(), anmf(8000, 6000, &large)]),
        webp(&[vp8x(0, 8, 8), anim(), anmf(8, 8, &small), large.clone()]),
        webp(&[vp8x(0, 8, 8), anim(), anmf(8, 8, &small)]),
        webp(&[vp8x(2, 8, 8), small.clone()]),
        webp(&[small.clone(), vp8x(2, 8, 8), anim(), anmf(8, 8, &small)]),
        webp(&[small.clone(), large.clone()]),
        webp(&[vp8x(2, 8, 8), anim(), anmf(8, 8, &[small.clone(), large].concat())]),
    ] {
        let error = Header::read(&file, &Limits::default()).expect_err("refused").to_string();
        assert!(error.contains("the WebP image is damaged"), "{error}");
    }
    assert_eq!(process(&webp(&[small])), Ok(()));
}

#[test]
fn jpeg_with_many_scans_for_its_size_is_refused_before_decoding() {
    let mut jpeg = file("420_progressive.jpg");
    let marker =
        |marker: u8, bytes: &[u8]| bytes.windows(2).rposition(|pair| pair == [0xff, marker]).unwrap();
    let (scan, end) = (marker(0xda, &jpeg), marker(0xd9, &jpeg));
    let repeated = [&jpeg[..end], &jpeg[scan..end].repeat(40), &jpeg[end..]].concat();
    assert_eq!(process(&repeated), Ok(()), "a small image");
    let large = |mut bytes: Vec<u8>| {
        let frame = marker(0xc2, &bytes);
        bytes[frame + 5..frame + 9].copy_from_slice(&[0x17, 0xd0, 0x20, 0]);
        Header::read(&bytes, &Limits::default()).map(|header| (header.stored_width, header.stored_height))
    };
    assert_eq!(large(std::mem::take(&mut jpeg)), Ok((8192, 6096)));
    let error = large(repeated).expect_err("refused").to_string();
    assert!(error.contains("scans, too many for its size"), "{error}");
}

#[test]
fn other_formats_are_refused() {
    check_refused(
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///x'/></svg>",
        "an SVG document",
    );
    check_refused(b"", "empty");
    check_refused(b"\x89PNG\r\n\x1a\n", "it ends early");
}

#[test]
fn polyglots_are_refused() {
    for name in ["rgb_8.png", "lossy.webp", "lossless.webp", "palette.gif", "animated.gif"] {
        let mut bytes = file(name);
        bytes.extend([0; 9]);
        assert_eq!(process(&bytes), Ok(()), "{name}: zeros are padding");
        bytes.extend(b"<script>alert(1)</script>");
        check_refused(&bytes, "is followed by 34 bytes that are not part of it");
    }
    for (appended, expected) in [
        (&b"PK\x03\x04....PK\x05\x06"[..], "contains a ZIP archive"),
        (&b"%PDF-1.4"[..], "contains a PDF document"),
        (&b"<html><body>"[..], "contains an HTML document"),
    ] {
        check_refused(&[file("444.jpg"), vec![b' '; 1024], appended.to_vec()].concat(), expected);
    }
    // Cameras append a second picture.
    assert_eq!(process(&[file("444.jpg"), file("420.jpg")].concat()), Ok(()));
    let mut gif = file("palette.gif");
    gif[13..18].copy_from_slice(b"%PDF-");
    check_refused(&gif, "is also a PDF document");
}

#[test]
fn truncated_files_are_refused_at_every_length() {
    for name in goldens()["files"].as_object().unwrap().keys() {
        let bytes = file(name);
        let is_animation = name.starts_with("animated");
        for length in (0..bytes.len()).step_by(bytes.len() / 150 + 1) {
            let result = process(&bytes[..length]);
            // A GIF may end after its first frame.
            if !(name.ends_with(".gif") && (is_animation || length + 3 > bytes.len())) {
                assert!(result.is_err(), "{name} cut at {length}");
            }
        }
    }
}

#[test]
fn changed_bytes_never_panic() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let processor = named_processor("qwen_small");
    for name in goldens()["files"].as_object().unwrap().keys() {
        let original = file(name);
        for _ in 0..20 {
            let mut bytes = original.clone();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            // Small limits keep a lying size from taking seconds in a debug build.
            let limits = Limits { max_pixels: 1_000_000, ..Limits::default() };
            if let Err(error) = processor.process(&bytes, &limits) {
                assert!(error.to_string().len() < 300, "{error}");
            }
        }
    }
}

#[test]
fn deadline_in_the_past_stops_every_decoder() {
    let limits = Limits { timeout: Duration::ZERO, ..Limits::default() };
    for name in ["rgb_8.png", "420.jpg", "lossless.webp", "palette.gif"] {
        let processor = named_processor("gemma4");
        assert_eq!(processor.process(&file(name), &limits), Err(Error::DeadlineExceeded), "{name}");
    }
}

#[test]
fn unsupported_kinds_of_jpeg_are_refused_by_name() {
    let change = |from: usize, to: u8| {
        let mut bytes = file("grey.jpg");
        let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
        bytes[frame + from] = to;
        bytes
    };
    check_refused(&change(4, 12), "has 12 bits per sample; send it as a baseline");
    check_refused(&change(9, 4), "has 4 components");
    check_refused(&change(1, 0xc9), "is arithmetic-coded");
    check_refused(&change(1, 0xc3), "is lossless or hierarchical");
    check_refused(&change(11, 0x50), "a sampling factor is not 1 to 4");
}
