//! Memory while images are decoded and preprocessed, beside what was stated in advance; in a
//! process of its own.
#![cfg(target_os = "linux")]

use std::fs;

use lanner_vision::{ConfigFiles, Header, Limits, Processor};

/// The highest resident memory since the last reset, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux");
    line.split_whitespace().nth(1).expect("Linux").parse::<u64>().expect("Linux") << 10
}

/// Resets the peak to what is resident now, and returns it.
fn reset_peak() -> u64 {
    fs::write("/proc/self/clear_refs", "5").expect("Linux");
    peak()
}

/// A GIF of one colour: LZW compresses 16 megapixels to a few thousand bytes.
fn gif_bomb(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = b"GIF89a".to_vec();
    bytes.extend([width.to_le_bytes(), height.to_le_bytes()].concat());
    bytes.extend([0x80, 0, 0, 1, 2, 3, 4, 5, 6, 0x2c, 0, 0, 0, 0]);
    bytes.extend([width.to_le_bytes(), height.to_le_bytes()].concat());
    bytes.extend([0, 2]);
    let mut bits = vec![];
    let mut push = |code: u32, width: u32| bits.extend((0..width).map(|bit| code >> bit & 1 == 1));
    // Each code repeats the string that it adds: lengths 1, 2, 3 and so on.
    push(4, 3);
    push(0, 3);
    let (mut written, mut next, mut code_bits, mut length) = (1_u64, 6_u32, 3, 1_u64);
    while written < u64::from(width) * u64::from(height) {
        push(next.min(4095), code_bits);
        length += u64::from(next < 4096);
        written += length;
        if next < 4096 {
            next += 1;
        }
        if next == 1 << code_bits && code_bits < 12 {
            code_bits += 1;
        }
    }
    let data: Vec<u8> = bits
        .chunks(8)
        .map(|byte| byte.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
        .collect();
    for block in data.chunks(255) {
        bytes.push(block.len() as u8);
        bytes.extend(block);
    }
    bytes.extend([0, 0x3b]);
    bytes
}

#[test]
fn memory_of_a_decompression_bomb_stays_below_what_is_stated() {
    let config = r#"{"image_processor_type":"Qwen2VLImageProcessor","patch_size":16}"#;
    let files = ConfigFiles { preprocessor: Some(config), processor: None };
    let processor = Processor::from_config(files).unwrap();
    let bomb = gif_bomb(4096, 4096);
    assert!(bomb.len() < 40_000, "{} bytes", bomb.len());
    let limits = Limits { timeout: std::time::Duration::from_secs(120), ..Limits::default() };
    let stated = processor.memory(&Header::read(&bomb, &limits).unwrap()).unwrap();
    let base = reset_peak();
    processor.process(&bomb, &limits).unwrap();
    let used = peak() - base;
    assert!(used < stated + (4 << 20), "{used} bytes used, {stated} stated");
    assert!(used > stated / 4, "{used} bytes used, {stated} stated: the test measures nothing");
    // A limit below what is stated refuses it at once.
    let base = reset_peak();
    let small = Limits { max_memory: stated - 1, ..limits };
    assert!(processor.process(&bomb, &small).unwrap_err().to_string().contains("bytes of decoded data"));
    assert!(peak() - base < 4 << 20);
}
