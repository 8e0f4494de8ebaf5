//! Weights in MLX's affine format: small integers with a scale and a bias per group.

use super::{
    Floats,
    float32::{self, Matrix, Row},
    product::Product,
};
use crate::lanes::{LANES, Lanes};

/// A matrix `[out, in]` in MLX's affine format: value = code * scale + bias.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a> {
    /// Each row one little-endian bit stream of codes.
    pub codes: &'a [u32],
    /// `[out, in / group_size]`, like `biases`, and of the same type.
    pub scales: Floats<'a>,
    pub biases: Floats<'a>,
    /// 32, 64 or 128.
    pub group_size: usize,
    /// 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
}

impl Affine<'_> {
    /// Panics unless the parts are those of `rows` rows of `k`.
    pub(super) fn check(&self, rows: usize, k: usize) {
        let Affine { codes, scales, biases, group_size, bits } = self;
        assert!([2, 3, 4, 5, 6, 8].contains(bits), "{bits} bits per weight; 2, 3, 4, 5, 6 and 8 exist");
        assert!([32, 64, 128].contains(group_size), "groups of {group_size}; 32, 64 and 128 exist");
        assert!(k.is_multiple_of(*group_size), "groups of {group_size} in {k}");
        assert_eq!(
            (codes.len(), scales.len(), biases.len()),
            (rows * k * bits / 32, rows * k / group_size, rows * k / group_size),
            "codes, scales and biases of {rows} rows of {k}"
        );
        let same = matches!(
            (scales, biases),
            (Floats::F32(_), Floats::F32(_))
                | (Floats::F16(_), Floats::F16(_))
                | (Floats::Bf16(_), Floats::Bf16(_))
        );
        assert!(same, "scales and biases of one type");
    }
}

/// In float32.
pub(super) fn multiply(x: &[f32], weight: Affine, out: &mut [f32], product: &Product) {
    let Affine { codes, scales, biases, group_size, bits } = weight;
    let (scales, biases) = (scales.to_f32(), biases.to_f32());
    let (words, groups) = (product.k * bits / 32, product.k / group_size);
    let chunks_per_group = group_size / LANES;
    macro_rules! with_bits {
        ($($b:literal)*) => {
            match bits {
                $($b => {
                    let (scales, biases) = (&scales[..], &biases[..]);
                    let weight = Quantized::<$b> { codes, scales, biases, words, groups, chunks_per_group };
                    float32::multiply(x, weight, out, product)
                })*
                _ => unreachable!("checked"),
            }
        };
    }
    with_bits!(2 3 4 5 6 8);
}

/// A matrix if its rows hold `words` of codes and `groups` of scales; as its own [`Row`], those of one row.
#[derive(Clone, Copy)]
struct Quantized<'a, const BITS: usize> {
    codes: &'a [u32],
    scales: &'a [f32],
    biases: &'a [f32],
    words: usize,
    groups: usize,
    chunks_per_group: usize,
}

impl<const BITS: usize> Matrix for Quantized<'_, BITS> {
    type Row = Self;
    #[inline(always)]
    fn row(self, index: usize) -> Self {
        Quantized {
            codes: &self.codes[index * self.words..][..self.words],
            scales: &self.scales[index * self.groups..][..self.groups],
            biases: &self.biases[index * self.groups..][..self.groups],
            ..self
        }
    }
}

impl<const BITS: usize> Row for Quantized<'_, BITS> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        let codes = unpack::<BITS>(self.codes, chunk);
        let group = chunk / self.chunks_per_group;
        let (scale, bias) = (self.scales[group], self.biases[group]);
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = (codes[i] as f32).mul_add(scale, bias);
        }
        lanes
    }
}

/// The 16 codes of a chunk, which start `2 * BITS` bytes after the previous chunk's.
#[inline(always)]
pub(super) fn unpack<const BITS: usize>(row: &[u32], chunk: usize) -> [u32; LANES] {
    // Where each code lies is a constant of its lane, so all this becomes a few shuffles and shifts.
    let mask = (1u32 << BITS) - 1;
    let mut codes = [0; LANES];
    if let 2 | 4 | 8 = BITS {
        let words = &row[chunk * BITS / 2..][..BITS / 2];
        for i in 0..LANES {
            codes[i] = (words[i * BITS / 32] >> (i * BITS % 32)) & mask;
        }
        return codes;
    }
    // A chunk of 3 or 5 bits may begin in the middle of a word.
    let start = chunk * LANES * BITS / 32;
    let word = |i: usize| row.get(start + i).copied().unwrap_or(0) as u128;
    let stream = (word(0) | word(1) << 32 | word(2) << 64 | word(3) << 96) >> (chunk * LANES * BITS % 32);
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (stream >> (i * BITS)) as u32 & mask;
    }
    codes
}
