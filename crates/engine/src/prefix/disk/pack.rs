//! Keys and values in 8 or 4 bits each. Knows nothing of files.
//!
//! The numbers of one head and token stand in groups of 32, the last of them perhaps smaller. A group is its least number
//! and the step from one code to the next, both bfloat16, then a code for each number: 9 or 5 bits a number in all. Both
//! are rounded away from the numbers, so that these lie within the codes, and each comes back at most half a step off, beside
//! what its type rounds. At the same size, steps of either sign around zero for 16 numbers each are a tenth less exact on merlin's state.

use half::{bf16, f16};
use mlx::Dtype;

use crate::CacheBits;

const GROUP: usize = 32;
/// Bytes of a group beside its codes.
const SHARED: usize = 4;
/// Beyond this a code's number might have no place in its type; nothing that a model means is near it.
const TOO_LARGE: f32 = 1e38;

/// Bytes of `row` numbers of one head and token.
pub fn row_bytes(row: usize, bits: CacheBits) -> usize {
    let group = |numbers: usize| SHARED + (numbers * usize::from(u8::from(bits))).div_ceil(8);
    let rest = row % GROUP;
    row / GROUP * group(GROUP) + if rest > 0 { group(rest) } else { 0 }
}

/// Packs numbers of type `dtype`, `row` of them for each head and token. `None` if one is not finite, or nearly not.
pub fn pack(bytes: &[u8], row: usize, bits: CacheBits, dtype: Dtype) -> Option<Vec<u8>> {
    let mut packed = vec![];
    let mut group = [0.0; GROUP];
    for row in bytes.chunks(row.max(1) * dtype.size()) {
        for values in row.chunks(GROUP * dtype.size()) {
            let numbers = values.len() / dtype.size();
            read(values, dtype, &mut group[..numbers]);
            pack_group(&group[..numbers], bits, &mut packed)?;
        }
    }
    Some(packed)
}

/// Fills `bytes` with the numbers that [`pack`] was given, nearly.
pub fn unpack(mut packed: &[u8], row: usize, bits: CacheBits, dtype: Dtype, bytes: &mut [u8]) {
    let mut group = [0.0; GROUP];
    for row in bytes.chunks_mut(row.max(1) * dtype.size()) {
        for values in row.chunks_mut(GROUP * dtype.size()) {
            let numbers = values.len() / dtype.size();
            let (own, rest) = packed.split_at(row_bytes(numbers, bits));
            packed = rest;
            unpack_group(own, bits, &mut group[..numbers]);
            write(&group[..numbers], dtype, values);
        }
    }
}

fn pack_group(values: &[f32], bits: CacheBits, packed: &mut Vec<u8>) -> Option<()> {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = -above(-least);
    let step = above((most - least) / codes(bits));
    if !values.iter().all(|value| value.abs() < TOO_LARGE) {
        return None;
    }
    for number in [least, step] {
        packed.extend(bf16::from_f32(number).to_le_bytes());
    }
    let code = |value: &f32| match step {
        0.0 => 0,
        _ => ((value - least) / step).round_ties_even().clamp(0.0, codes(bits)) as u8,
    };
    match bits {
        CacheBits::Eight => packed.extend(values.iter().map(code)),
        CacheBits::Four => packed.extend(
            values.chunks(2).map(|pair| code(&pair[0]) | pair.get(1).map_or(0, |second| code(second) << 4)),
        ),
    }
    Some(())
}

fn unpack_group(packed: &[u8], bits: CacheBits, values: &mut [f32]) {
    let (shared, codes) = packed.split_at(SHARED);
    let [least, step] = [0, 2].map(|at| bf16::from_le_bytes([shared[at], shared[at + 1]]).to_f32());
    let value = |code: u8| least + f32::from(code) * step;
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
fn codes(bits: CacheBits) -> f32 {
    match bits {
        CacheBits::Eight => 255.0,
        CacheBits::Four => 15.0,
    }
}

/// The least bfloat16 that is not below `value`.
fn above(value: f32) -> f32 {
    let near = bf16::from_f32(value);
    if near.to_f32() >= value || !value.is_finite() {
        return near.to_f32();
    }
    // Away from zero is a larger number without its sign, towards it a smaller one.
    let bits = if near.is_sign_negative() { near.to_bits() - 1 } else { near.to_bits() + 1 };
    bf16::from_bits(bits).to_f32()
}

fn read(bytes: &[u8], dtype: Dtype, values: &mut [f32]) {
    match dtype {
        Dtype::Float16 => each(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::Bfloat16 => each(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
        _ => each(bytes, values, f32::from_le_bytes),
    }
}

fn each<const N: usize>(bytes: &[u8], values: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (to, from) in values.iter_mut().zip(bytes.as_chunks().0) {
        *to = number(*from);
    }
}

fn write(values: &[f32], dtype: Dtype, bytes: &mut [u8]) {
    // The least of a group may be below the type's own.
    let half = |value: f32| f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()));
    match dtype {
        Dtype::Float16 => fill(values, bytes, |value| half(value).to_le_bytes()),
        Dtype::Bfloat16 => fill(values, bytes, |value| bf16::from_f32(value).to_le_bytes()),
        _ => fill(values, bytes, f32::to_le_bytes),
    }
}

fn fill<const N: usize>(values: &[f32], bytes: &mut [u8], number: impl Fn(f32) -> [u8; N]) {
    for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *to = number(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DTYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
    const BITS: [CacheBits; 2] = [CacheBits::Eight, CacheBits::Four];

    /// Numbers in -1..1, different in each group.
    fn noise(numbers: usize, seed: u32) -> Vec<f32> {
        let number = |i: u32| ((i ^ seed).wrapping_mul(0x9E37_79B9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        (0..numbers as u32).map(number).collect()
    }

    /// What comes back, and what went in once it had the type.
    fn there_and_back(values: &[f32], row: usize, bits: CacheBits, dtype: Dtype) -> [Vec<f32>; 2] {
        let mut bytes = vec![0; values.len() * dtype.size()];
        write(values, dtype, &mut bytes);
        let mut typed = vec![0.0; values.len()];
        read(&bytes, dtype, &mut typed);
        let packed = pack(&bytes, row, bits, dtype).expect("finite");
        assert_eq!(packed.len(), values.len() / row * row_bytes(row, bits));
        bytes.fill(0xFF);
        unpack(&packed, row, bits, dtype, &mut bytes);
        let mut back = vec![0.0; values.len()];
        read(&bytes, dtype, &mut back);
        [back, typed]
    }

    #[test]
    fn each_number_comes_back_within_half_a_step() {
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
                let [back, typed] = there_and_back(&values, row, bits, dtype);
                for (back, typed) in back.chunks(row).zip(typed.chunks(row)) {
                    for (back, typed) in back.chunks(GROUP).zip(typed.chunks(GROUP)) {
                        let least = typed.iter().copied().fold(f32::INFINITY, f32::min);
                        let most = typed.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        // Least number and step are bfloat16, rounded away.
                        let step = (most - least + least.abs() / 128.0) / codes(bits) * (1.0 + 1.0 / 128.0);
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
    fn four_bits_are_not_eight() {
        let values = noise(64 * 100, 3);
        let error = |bits| {
            let [back, typed] = there_and_back(&values, 64, bits, Dtype::Float32);
            let squares: f32 = back.iter().zip(&typed).map(|(a, b)| (a - b) * (a - b)).sum();
            (squares / values.len() as f32).sqrt()
        };
        let [eight, four] = BITS.map(error);
        // A uniform error of a step of 2 / 255 and 2 / 15.
        assert!((0.0018..0.0025).contains(&eight) && (0.03..0.042).contains(&four), "{eight} {four}");
    }

    #[test]
    fn a_number_takes_nine_bits_or_five() {
        assert_eq!(BITS.map(|bits| row_bytes(64, bits)), [72, 40]);
        assert_eq!(BITS.map(|bits| row_bytes(80, bits)), [80 + 12, 40 + 12]);
        assert_eq!(BITS.map(|bits| row_bytes(3, bits)), [7, 6]);
    }

    #[test]
    fn codes_of_a_group_are_its_own() {
        // Packing one row or all together gives the same bytes: state must not depend on how it was cut.
        let values = noise(48 * 10, 5);
        for bits in BITS {
            let mut bytes = vec![0; values.len() * 4];
            write(&values, Dtype::Float32, &mut bytes);
            let whole = pack(&bytes, 48, bits, Dtype::Float32).expect("finite");
            let rows: Vec<u8> = bytes
                .chunks(48 * 4)
                .flat_map(|row| pack(row, 48, bits, Dtype::Float32).expect("finite"))
                .collect();
            assert!(whole == rows, "{bits:?}");
        }
    }

    #[test]
    fn what_is_not_finite_is_not_packed() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN] {
            let mut values = noise(64, 1);
            values[40] = value;
            let mut bytes = vec![0; 256];
            write(&values, Dtype::Float32, &mut bytes);
            assert_eq!(pack(&bytes, 64, CacheBits::Eight, Dtype::Float32), None, "{value}");
        }
        // The ends of float16 are numbers like others.
        let ends = [f16::MIN.to_f32(), f16::MAX.to_f32(), 0.0, 1.0];
        let [back, _] = there_and_back(&ends, 4, CacheBits::Four, Dtype::Float16);
        assert!(back.iter().all(|value| value.is_finite()), "{back:?}");
    }
}
