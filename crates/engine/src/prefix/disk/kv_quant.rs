//! Quantizes keys and values to 8 or 4 bits. Knows nothing of files.
//!
//! The values of one head and token form groups of 32; the last one may be smaller. A group is
//! stored as minimum and scale, both bfloat16, then one code per value: 9 or 5 bits per value in
//! total. Minimum and scale are rounded outwards, so that all values lie within the codes; the
//! error is at most half a step, plus rounding to the dtype. Symmetric groups of 16, which have the
//! same size, are a tenth less exact on merlin's state.

use half::{bf16, f16};
use mlx::Dtype;

use crate::api::CacheBits;

const GROUP: usize = 32;
/// Bytes of a group's minimum and scale.
const GROUP_HEADER: usize = 4;
/// Codes of larger values might overflow their dtype; no model computes values near it.
const MAX_VALUE: f32 = 1e38;

/// Bytes of the `row` quantized values of one head and token.
pub(super) fn row_bytes(row: usize, bits: CacheBits) -> usize {
    let group = |values: usize| GROUP_HEADER + (values * usize::from(u8::from(bits))).div_ceil(8);
    let rest = row % GROUP;
    row / GROUP * group(GROUP) + if rest > 0 { group(rest) } else { 0 }
}

/// Quantizes values of `dtype`, `row` per head and token. `None` if a value is not finite, or close
/// to overflow.
pub(super) fn quantize(bytes: &[u8], row: usize, bits: CacheBits, dtype: Dtype) -> Option<Vec<u8>> {
    let mut quantized = vec![];
    let mut group = [0.0; GROUP];
    for row in bytes.chunks(row.max(1) * dtype.size()) {
        for values in row.chunks(GROUP * dtype.size()) {
            let count = values.len() / dtype.size();
            read(values, dtype, &mut group[..count]);
            quantize_group(&group[..count], bits, &mut quantized)?;
        }
    }
    Some(quantized)
}

/// Fills `bytes` with approximately the values given to [`quantize`].
pub(super) fn dequantize(mut quantized: &[u8], row: usize, bits: CacheBits, dtype: Dtype, bytes: &mut [u8]) {
    let mut group = [0.0; GROUP];
    for row in bytes.chunks_mut(row.max(1) * dtype.size()) {
        for values in row.chunks_mut(GROUP * dtype.size()) {
            let count = values.len() / dtype.size();
            let (first, rest) = quantized.split_at(row_bytes(count, bits));
            quantized = rest;
            dequantize_group(first, bits, &mut group[..count]);
            write(&group[..count], dtype, values);
        }
    }
}

fn quantize_group(values: &[f32], bits: CacheBits, quantized: &mut Vec<u8>) -> Option<()> {
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = -round_up(-min);
    let scale = round_up((max - min) / max_code(bits));
    if !values.iter().all(|value| value.abs() < MAX_VALUE) {
        return None;
    }
    for number in [min, scale] {
        quantized.extend(bf16::from_f32(number).to_le_bytes());
    }
    let code = |value: &f32| match scale {
        0.0 => 0,
        _ => ((value - min) / scale).round_ties_even().clamp(0.0, max_code(bits)) as u8,
    };
    match bits {
        CacheBits::Eight => quantized.extend(values.iter().map(code)),
        CacheBits::Four => quantized.extend(
            values.chunks(2).map(|pair| code(&pair[0]) | pair.get(1).map_or(0, |second| code(second) << 4)),
        ),
    }
    Some(())
}

fn dequantize_group(quantized: &[u8], bits: CacheBits, values: &mut [f32]) {
    let (header, codes) = quantized.split_at(GROUP_HEADER);
    let [min, scale] = [0, 2].map(|at| bf16::from_le_bytes([header[at], header[at + 1]]).to_f32());
    let value = |code: u8| min + f32::from(code) * scale;
    match bits {
        CacheBits::Eight => values.iter_mut().zip(codes).for_each(|(to, code)| *to = value(*code)),
        CacheBits::Four => {
            for (pair, code) in values.chunks_mut(2).zip(codes) {
                let both = [value(code & 15), value(code >> 4)];
                pair.iter_mut().zip(both).for_each(|(to, value)| *to = value);
            }
        }
    }
}

/// The highest code.
fn max_code(bits: CacheBits) -> f32 {
    match bits {
        CacheBits::Eight => 255.0,
        CacheBits::Four => 15.0,
    }
}

/// The smallest bfloat16 that is not below `value`.
fn round_up(value: f32) -> f32 {
    let near = bf16::from_f32(value);
    if near.to_f32() >= value || !value.is_finite() {
        return near.to_f32();
    }
    // The next bfloat16 up has a larger magnitude if positive, a smaller one if negative.
    let bits = if near.is_sign_negative() { near.to_bits() - 1 } else { near.to_bits() + 1 };
    bf16::from_bits(bits).to_f32()
}

fn read(bytes: &[u8], dtype: Dtype, values: &mut [f32]) {
    match dtype {
        Dtype::Float16 => decode(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::Bfloat16 => decode(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
        _ => decode(bytes, values, f32::from_le_bytes),
    }
}

fn decode<const N: usize>(bytes: &[u8], values: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (to, from) in values.iter_mut().zip(bytes.as_chunks().0) {
        *to = number(*from);
    }
}

fn write(values: &[f32], dtype: Dtype, bytes: &mut [u8]) {
    // The minimum of a group may be below that of the dtype.
    let half = |value: f32| f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()));
    match dtype {
        Dtype::Float16 => encode(values, bytes, |value| half(value).to_le_bytes()),
        Dtype::Bfloat16 => encode(values, bytes, |value| bf16::from_f32(value).to_le_bytes()),
        _ => encode(values, bytes, f32::to_le_bytes),
    }
}

fn encode<const N: usize>(values: &[f32], bytes: &mut [u8], number: impl Fn(f32) -> [u8; N]) {
    for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *to = number(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DTYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
    const BITS: [CacheBits; 2] = [CacheBits::Eight, CacheBits::Four];

    /// Values in -1..1, different in each group.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let number = |i: u32| ((i ^ seed).wrapping_mul(0x9E37_79B9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        (0..count as u32).map(number).collect()
    }

    /// The dequantized values, and the originals rounded to `dtype`.
    fn round_trip(values: &[f32], row: usize, bits: CacheBits, dtype: Dtype) -> [Vec<f32>; 2] {
        let mut bytes = vec![0; values.len() * dtype.size()];
        write(values, dtype, &mut bytes);
        let mut typed = vec![0.0; values.len()];
        read(&bytes, dtype, &mut typed);
        let quantized = quantize(&bytes, row, bits, dtype).expect("finite");
        assert_eq!(quantized.len(), values.len() / row * row_bytes(row, bits));
        bytes.fill(0xFF);
        dequantize(&quantized, row, bits, dtype, &mut bytes);
        let mut back = vec![0.0; values.len()];
        read(&bytes, dtype, &mut back);
        [back, typed]
    }

    #[test]
    fn dequantized_value_is_within_half_a_step() {
        for (row, scale, offset) in [
            (64, 1.0, 0.0),
            (128, 3e-5, 0.0),
            (80, 1e3, -4e3),
            (8, 0.1, 100.0),
            (3, 1.0, 0.0),
            (33, 2.0, 1e-3),
            (32, 0.0, -7.3),
            (1, 1.0, 0.0),
        ] {
            let values: Vec<f32> = noise(row * 200, 7).iter().map(|x| x * scale + offset).collect();
            for (bits, dtype) in BITS.into_iter().flat_map(|bits| DTYPES.map(|dtype| (bits, dtype))) {
                let [back, typed] = round_trip(&values, row, bits, dtype);
                for (back, typed) in back.chunks(row).zip(typed.chunks(row)) {
                    for (back, typed) in back.chunks(GROUP).zip(typed.chunks(GROUP)) {
                        let least = typed.iter().copied().fold(f32::INFINITY, f32::min);
                        let most = typed.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        // Minimum and scale are bfloat16, rounded outwards.
                        let step =
                            (most - least + least.abs() / 128.0) / max_code(bits) * (1.0 + 1.0 / 128.0);
                        let unit = if dtype == Dtype::Float16 { 2e-3 } else { 8e-3 };
                        let own = if dtype == Dtype::Float32 { 1e-6 } else { unit };
                        let bound = step * 0.501 + least.abs().max(most.abs()) * own + 1e-7;
                        for (back, typed) in back.iter().zip(typed) {
                            assert!(
                                (back - typed).abs() <= bound,
                                "{typed} came back as {back}, bound {bound}: {bits:?} {dtype:?} rows of {row}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn quantization_error_matches_bits() {
        let values = noise(64 * 100, 3);
        let error = |bits| {
            let [back, typed] = round_trip(&values, 64, bits, Dtype::Float32);
            let squares: f32 = back.iter().zip(&typed).map(|(a, b)| (a - b) * (a - b)).sum();
            (squares / values.len() as f32).sqrt()
        };
        let [eight, four] = BITS.map(error);
        // A uniform error of a step of 2 / 255 and 2 / 15.
        assert!((0.0018..0.0025).contains(&eight) && (0.03..0.042).contains(&four), "{eight} {four}");
    }

    #[test]
    fn quantized_size_is_nine_or_five_bits_per_value() {
        assert_eq!(BITS.map(|bits| row_bytes(64, bits)), [72, 40]);
        assert_eq!(BITS.map(|bits| row_bytes(80, bits)), [80 + 12, 40 + 12]);
        assert_eq!(BITS.map(|bits| row_bytes(3, bits)), [7, 6]);
    }

    #[test]
    fn groups_are_quantized_independently_of_row_batching() {
        // One row or all rows at once: state must not depend on how it was split.
        let values = noise(48 * 10, 5);
        for bits in BITS {
            let mut bytes = vec![0; values.len() * 4];
            write(&values, Dtype::Float32, &mut bytes);
            let whole = quantize(&bytes, 48, bits, Dtype::Float32).expect("finite");
            let rows: Vec<u8> = bytes
                .chunks(48 * 4)
                .flat_map(|row| quantize(row, 48, bits, Dtype::Float32).expect("finite"))
                .collect();
            assert!(whole == rows, "{bits:?}");
        }
    }

    #[test]
    fn quantize_non_finite_value_returns_none() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN] {
            let mut values = noise(64, 1);
            values[40] = value;
            let mut bytes = vec![0; 256];
            write(&values, Dtype::Float32, &mut bytes);
            assert_eq!(quantize(&bytes, 64, CacheBits::Eight, Dtype::Float32), None, "{value}");
        }
        // The limits of float16 are finite.
        let ends = [f16::MIN.to_f32(), f16::MAX.to_f32(), 0.0, 1.0];
        let [back, _] = round_trip(&ends, 4, CacheBits::Four, Dtype::Float16);
        assert!(back.iter().all(|value| value.is_finite()), "{back:?}");
    }
}
