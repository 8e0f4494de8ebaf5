//! Quantises weights to 4- and 8-bit floats, bit-identical to MLX's `quantize` on the CPU, which
//! takes twenty times the memory and minutes per gigabyte.

use crate::{FloatFormat, Scalar, linear::e4m3, parallel::for_each_chunk};

/// Weights of a task, a multiple of every group size.
const TASK_WEIGHTS: usize = 1 << 14;

/// Quantises `values`, whole groups, into `codes` (the first in a word's lowest bits) and one byte
/// of `scales` per group.
pub fn quantize_microscaled<T: Scalar>(
    values: &[T],
    format: FloatFormat,
    codes: &mut [u32],
    scales: &mut [u8],
) {
    let (bits, group) = (format.bits(), format.group());
    assert!(values.len().is_multiple_of(group), "groups of {group} in {}", values.len());
    assert_eq!((codes.len() * 32, scales.len() * group), (values.len() * bits, values.len()));
    let work = 8 * values.len();
    for_each_chunk(scales, TASK_WEIGHTS / group, work, |i, scales| {
        let groups = values[i * TASK_WEIGHTS..].chunks_exact(group);
        scales.iter_mut().zip(groups).for_each(|(scale, values)| *scale = scale_byte(values, format));
    });
    let scales = &*scales;
    for_each_chunk(codes, TASK_WEIGHTS * bits / 32, work, |i, codes| {
        let groups = values[i * TASK_WEIGHTS..].chunks_exact(group).zip(&scales[i * TASK_WEIGHTS / group..]);
        for (codes, (values, &scale)) in codes.chunks_exact_mut(group * bits / 32).zip(groups) {
            quantize_group(values, scale_value::<T>(scale, format), bits, codes);
        }
    });
}

/// The group's stored scale; scales below the smallest byte become the smallest.
fn scale_byte<T: Scalar>(values: &[T], format: FloatFormat) -> u8 {
    let max = values.iter().fold(0.0f32, |max, value| max.max(value.to_f32().abs()));
    let scale = rounded::<T>(max / if format.bits() == 4 { 6.0 } else { 448.0 });
    if format == FloatFormat::Nvfp4 {
        return to_e4m3(scale);
    }
    let exponent = if scale == 0.0 { 0.0 } else { scale.log2().ceil() };
    (exponent + 127.0) as u8
}

fn scale_value<T: Scalar>(byte: u8, format: FloatFormat) -> f32 {
    match format {
        FloatFormat::Nvfp4 => e4m3(byte.into()),
        _ => rounded::<T>((byte as f32 - 127.0).exp2()),
    }
}

fn quantize_group<T: Scalar>(values: &[T], scale: f32, bits: usize, codes: &mut [u32]) {
    for (word, values) in codes.iter_mut().zip(values.chunks_exact(32 / bits)) {
        *word = values.iter().rev().fold(0, |word, value| {
            let value = rounded::<T>(value.to_f32() / scale);
            let code = if bits == 4 { to_e2m1(value) } else { to_e4m3(value).into() };
            word << bits | code
        });
    }
}

/// The nearest of [`E2M1`], ties to the first.
fn to_e2m1(value: f32) -> u32 {
    let size = value.abs();
    if size > 6.0 || size.is_nan() {
        return search_e2m1(value);
    }
    let magnitude: u32 =
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].iter().map(|&middle| u32::from(size > middle)).sum();
    if value < 0.0 && magnitude > 0 { magnitude | 8 } else { magnitude }
}

/// Values of the codes without their sign bit.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// For values above the largest: some rounded distances are equal.
#[cold]
fn search_e2m1(value: f32) -> u32 {
    let (mut best, mut least) = (0, f32::INFINITY);
    for (code, size) in (0..).zip(E2M1.into_iter().chain(E2M1.map(|size| -size))) {
        let distance = (value - size).abs();
        if distance < least {
            (best, least) = (code, distance);
        }
    }
    best
}

/// The nearest e4m3, ties to even, saturating at 448.
fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits() & 0x7fff_ffff;
    let size = f32::from_bits(bits);
    let code = if size < 1.0 / 64.0 {
        // Subnormals have the step of float32 at 2^14: the sum rounds to it.
        (size + 16384.0).to_bits() - 16384f32.to_bits()
    } else if size < 448.0 {
        let odd = (bits >> 20) & 1;
        (bits - ((127 - 7) << 23) + 0x7_ffff + odd) >> 20
    } else {
        0x7e
    };
    code as u8 | (value.to_bits() >> 24) as u8 & 0x80
}

fn rounded<T: Scalar>(value: f32) -> f32 {
    T::from_f32(value).to_f32()
}
