//! Random weights with the shapes of a real model, for benchmarks without its files.
//!
//! Scaled so that activations and logits stay near 1. The same name, shape and format give the same
//! values; the tensors that `lanner quantize` would quantise are quantised, in MLX's layout.

use std::thread;

use mlx::{
    Array, Dtype,
    quant::{Mode, Quantization, Quantized},
};
use nn::Matrix;

use super::{Action, action_for};
use crate::error::Result;

/// Minimum bytes per thread; a multiple of 8.
const MIN_CHUNK: usize = 1 << 18;

/// Format of random weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random {
    /// Format of matrices; `None` for bfloat16, the type of all else.
    pub quantization: Option<Quantization>,
    /// Whether experts are in MXFP4 where other matrices are quantised.
    pub mxfp4_experts: bool,
}

impl Random {
    /// Bfloat16 values of other tensors: norms and scales near 1, biases near 0.
    pub(crate) fn tensor(self, name: &str, shape: &[i32]) -> Result<Array> {
        let near_zero = ["bias", "A_log", "sinks"].iter().any(|part| name.contains(part));
        let (centre, spread) = match shape {
            [_] if near_zero => (0.0, 0.5),
            [_] => (1.0, 0.1),
            _ => (0.0, uniform_spread(inputs_of(shape))),
        };
        bfloat16(name, shape, centre, spread)
    }

    /// A matrix `[outputs, inputs]`, or a stack of them, called `name` without `.weight`.
    pub(crate) fn matrix(self, name: &str, shape: &[i32]) -> Result<Matrix> {
        let weight = format!("{name}.weight");
        let sizes: Vec<usize> = shape.iter().map(|&dim| dim as usize).collect();
        let quantized =
            |q: &Quantization| action_for(&weight, &sizes, Dtype::Bfloat16, *q) == Action::Quantize;
        let experts = |q| match self.mxfp4_experts && name.contains(".experts.") {
            true => Quantization { mode: Mode::Mxfp4, group_size: 32, bits: 4 },
            false => q,
        };
        match self.quantization.map(experts).filter(quantized) {
            Some(q) => Ok(Matrix::Quantized(quantized_matrix(name, shape, q)?)),
            None => Ok(Matrix::Dense(self.tensor(&weight, shape)?)),
        }
    }
}

/// Half the width of a uniform distribution that keeps the variance of sums over `inputs` terms.
fn uniform_spread(inputs: usize) -> f32 {
    (3.0 / inputs as f32).sqrt()
}

fn inputs_of(shape: &[i32]) -> usize {
    // A convolution's inputs are all axes after the first, a stacked matrix's the last.
    match shape {
        [_, rest @ .., 1] => rest.iter().map(|&dim| dim as usize).product(),
        _ => shape.last().map_or(1, |&dim| dim as usize),
    }
}

/// Random codes, with scales for the standard deviation that this size needs.
fn quantized_matrix(name: &str, shape: &[i32], q: Quantization) -> Result<Quantized> {
    let (inputs, rows) = (shape[shape.len() - 1], &shape[..shape.len() - 1]);
    let with_last = |last: i32| [rows, &[last]].concat();
    let (codes_shape, scales_shape) = (with_last(inputs * q.bits / 32), with_last(inputs / q.group_size));
    // An 8-bit float with both top bits of the exponent set may be no number.
    let mask = if q.mode == Mode::Mxfp8 { 0xbfbf_bfbf_bfbf_bfbf } else { u64::MAX };
    let codes = Array::fill_with(&codes_shape, Dtype::Uint32, |bytes| {
        fill(bytes, hash(name), |word| word & mask);
        Ok(())
    })?;
    let deviation = (inputs as f32).powf(-0.5);
    let (scales, biases) = match q.mode {
        Mode::Affine => {
            let steps = ((1 << q.bits) - 1) as f32;
            let scale = deviation * (12.0 / ((steps + 1.0) * (steps + 1.0) - 1.0)).sqrt();
            let plain = |value| Array::full(&scales_shape, value, Dtype::Bfloat16);
            (plain(scale), Some(plain(-scale * steps / 2.0)))
        }
        mode => (bytes(&scales_shape, scale_byte(mode, deviation))?, None),
    };
    mlx::eval([&scales].into_iter().chain(&biases))?;
    Ok(Quantized { codes, scales, biases, quantization: q })
}

/// The scale, in the mode's own 8-bit float, that gives random codes about this standard deviation.
fn scale_byte(mode: Mode, deviation: f32) -> u8 {
    // Root mean square of codes whose bits are random (those of mxfp8 masked as above).
    let of_codes = if mode == Mode::Mxfp8 { 0.6 } else { 2.93 };
    let scale = deviation / of_codes;
    match mode {
        // E4M3: below 2^-6 multiples of 2^-9.
        Mode::Nvfp4 if scale < 0.015_625 => ((scale * 512.0).round() as u8).max(1),
        Mode::Nvfp4 => {
            let exponent = scale.log2().floor();
            let fraction = ((scale / exponent.exp2() - 1.0) * 8.0) as u8;
            ((exponent as i32 + 7) as u8) << 3 | fraction
        }
        // E8M0: a power of two.
        _ => (scale.log2().round() as i32 + 127) as u8,
    }
}

fn bytes(shape: &[i32], value: u8) -> Result<Array> {
    let fill = |bytes: &mut [u8]| {
        bytes.fill(value);
        Ok(())
    };
    Ok(Array::fill_with(shape, Dtype::Uint8, fill)?)
}

fn bfloat16(name: &str, shape: &[i32], centre: f32, spread: f32) -> Result<Array> {
    let value = |bits: u64| {
        let unit = (bits as u16 as f32 + 0.5) / 32768.0 - 1.0;
        u64::from((centre + spread * unit).to_bits() >> 16)
    };
    let four = |word: u64| (0..4).fold(0, |values, i| values | value(word >> (16 * i)) << (16 * i));
    Ok(Array::fill_with(shape, Dtype::Bfloat16, |bytes| {
        fill(bytes, hash(name), four);
        Ok(())
    })?)
}

/// Fills `bytes` with `make` of 8 random bytes each, on all cores; the result does not depend on
/// their number.
fn fill(bytes: &mut [u8], seed: u64, make: impl Fn(u64) -> u64 + Sync) {
    let part = |bytes: &mut [u8], at: usize| {
        let first = seed.wrapping_add((at / 8) as u64);
        let (words, rest) = bytes.as_chunks_mut::<8>();
        let mut next = first;
        for word in words {
            *word = make(mix(next)).to_le_bytes();
            next = next.wrapping_add(1);
        }
        rest.copy_from_slice(&make(mix(next)).to_le_bytes()[..rest.len()]);
    };
    let threads = thread::available_parallelism().map_or(1, Into::into);
    let share = bytes.len().div_ceil(threads).next_multiple_of(MIN_CHUNK);
    if share >= bytes.len() {
        return part(bytes, 0);
    }
    thread::scope(|scope| {
        let part = &part;
        for (i, bytes) in bytes.chunks_mut(share).enumerate() {
            scope.spawn(move || part(bytes, i * share));
        }
    });
}

/// Word `n` of a random sequence (SplitMix64, Steele et al. 2014).
fn mix(n: u64) -> u64 {
    let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_fill_is_independent_of_thread_count() {
        for length in [0, 5, 8, 1000, 3 * MIN_CHUNK + 13] {
            let mut bytes = vec![0; length];
            fill(&mut bytes, 99, |word| word);
            let expected: Vec<u8> = (99..).flat_map(|n| mix(n).to_le_bytes()).take(length).collect();
            assert!(bytes == expected, "{length}");
        }
    }

    #[test]
    fn random_scale_byte_gives_the_standard_deviation() {
        let check = |mode, deviation: f32, expected: u8| {
            assert_eq!(scale_byte(mode, deviation), expected, "{mode:?}")
        };
        // 2.93 * 2^-7 in E8M0, whose bias is 127; 0.6 * 2^-5.
        check(Mode::Mxfp4, 2.93 / 128.0, 120);
        check(Mode::Mxfp8, 0.6 / 32.0, 122);
        // 3 * 2^-9 is subnormal in E4M3, 1.5 * 2^-4 normal: exponent 3, fraction 4 of 8.
        check(Mode::Nvfp4, 2.93 * 3.0 / 512.0, 3);
        check(Mode::Nvfp4, 2.93 * 1.5 / 16.0, 3 << 3 | 4);
    }
}
