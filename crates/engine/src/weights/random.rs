//! Weights that are made up as a model asks for them: the shapes of a real model, for measuring, without its files.
//!
//! They are scaled so that activations stay near 1 in every layer and logits too. The same name, shape and format give the
//! same values. What is quantised is what `lanner quantize` would quantise, in the layout of MLX's conversions.

use std::thread;

use mlx::{
    Array, Dtype,
    quant::{Mode, Quantization, Quantized},
};

use super::{Action, action_for};
use crate::{error::Result, nn::Matrix};

/// Fewest bytes that are worth a thread; a multiple of 8.
const SHARE: usize = 1 << 18;

/// How made-up weights are stored.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Of matrices; `None` leaves them in bfloat16, as everything else is.
    pub quantization: Option<Quantization>,
}

impl Random {
    /// Bfloat16 values of a tensor that is no matrix of weights: norms and scales near 1, biases and the like near 0.
    pub fn tensor(self, name: &str, shape: &[i32]) -> Result<Array> {
        let near_zero = ["bias", "A_log", "sinks"].iter().any(|part| name.contains(part));
        let (centre, spread) = match shape {
            [_] if near_zero => (0.0, 0.5),
            [_] => (1.0, 0.1),
            _ => (0.0, uniform_spread(inputs_of(shape))),
        };
        bfloat16(name, shape, centre, spread)
    }

    /// A matrix `[outputs, inputs]`, or a stack of them, called `name` without `.weight`.
    pub fn matrix(self, name: &str, shape: &[i32]) -> Result<Matrix> {
        let weight = format!("{name}.weight");
        let sizes: Vec<usize> = shape.iter().map(|&dim| dim as usize).collect();
        let quantized =
            |q: &Quantization| action_for(&weight, &sizes, Dtype::Bfloat16, *q) == Action::Quantize;
        match self.quantization.filter(quantized) {
            Some(q) => Ok(Matrix::Quantized(quantized_matrix(name, shape, q)?)),
            None => Ok(Matrix::Dense(self.tensor(&weight, shape)?)),
        }
    }
}

/// Half the width of a uniform distribution whose sums over so many inputs vary as the inputs do.
fn uniform_spread(inputs: usize) -> f32 {
    (3.0 / inputs as f32).sqrt()
}

fn inputs_of(shape: &[i32]) -> usize {
    // A convolution's inputs are all axes behind the first, a stacked matrix's the last.
    match shape {
        [_, rest @ .., 1] => rest.iter().map(|&dim| dim as usize).product(),
        _ => shape.last().map_or(1, |&dim| dim as usize),
    }
}

/// Codes are random bits; the scales make of them what a matrix of this size needs.
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
    let wanted = (inputs as f32).powf(-0.5);
    let (scales, biases) = match q.mode {
        Mode::Affine => {
            let steps = ((1 << q.bits) - 1) as f32;
            let scale = wanted * (12.0 / ((steps + 1.0) * (steps + 1.0) - 1.0)).sqrt();
            let plain = |value| Array::full(&scales_shape, value, Dtype::Bfloat16);
            (plain(scale), Some(plain(-scale * steps / 2.0)))
        }
        mode => (bytes(&scales_shape, scale_byte(mode, wanted))?, None),
    };
    mlx::eval([&scales].into_iter().chain(&biases))?;
    Ok(Quantized { codes, scales, biases, quantization: q })
}

/// The scale, in the mode's own 8-bit float, that gives random codes about this standard deviation.
fn scale_byte(mode: Mode, wanted: f32) -> u8 {
    // Root mean square of codes whose bits are random (those of mxfp8 masked as above).
    let of_codes = if mode == Mode::Mxfp8 { 0.6 } else { 2.93 };
    let scale = wanted / of_codes;
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

/// Fills `bytes` with what `make` makes of 8 random bytes each; on all cores, with the same result on any number.
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
    let share = bytes.len().div_ceil(threads).next_multiple_of(SHARE);
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
    fn many_threads_fill_as_one_would() {
        for length in [0, 5, 8, 1000, 3 * SHARE + 13] {
            let mut bytes = vec![0; length];
            fill(&mut bytes, 99, |word| word);
            let expected: Vec<u8> = (99..).flat_map(|n| mix(n).to_le_bytes()).take(length).collect();
            assert!(bytes == expected, "{length}");
        }
    }

    #[test]
    fn scales_give_codes_the_deviation_that_is_wanted() {
        let check =
            |mode, wanted: f32, expected: u8| assert_eq!(scale_byte(mode, wanted), expected, "{mode:?}");
        // 2.93 * 2^-7 in E8M0, whose bias is 127; 0.6 * 2^-5.
        check(Mode::Mxfp4, 2.93 / 128.0, 120);
        check(Mode::Mxfp8, 0.6 / 32.0, 122);
        // 3 * 2^-9 lies below E4M3's normal numbers, 1.5 * 2^-4 among them: exponent 3, fraction 4 of 8.
        check(Mode::Nvfp4, 2.93 * 3.0 / 512.0, 3);
        check(Mode::Nvfp4, 2.93 * 1.5 / 16.0, 3 << 3 | 4);
    }
}
