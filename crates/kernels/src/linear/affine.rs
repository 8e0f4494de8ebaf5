//! Weights in MLX's affine format: small integers with a scale and a bias per group.

use super::{Matrix, Product, Row, multiply};
use crate::{
    lanes::{LANES, Lanes},
    scalar::Scalar,
};

/// A matrix `[out, in]` in MLX's affine format: value = code * scale + bias.
#[derive(Clone, Copy)]
pub struct Affine<'a, S> {
    /// Each row one little-endian bit stream of codes.
    pub codes: &'a [u32],
    /// `[out, in / group_size]`, like `biases`.
    pub scales: &'a [S],
    pub biases: &'a [S],
    /// A multiple of 16.
    pub group_size: usize,
    /// 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
}

/// As [`linear`](crate::linear), for a quantised weight.
pub fn quantized_linear<X: Scalar, S: Scalar>(x: &[X], weight: Affine<S>, out: &mut [X], k: usize, n: usize) {
    affine_product(x, weight, out, &Product::one_matrix(out.len(), k, n));
}

pub(crate) fn affine_product<X: Scalar, S: Scalar>(
    x: &[X],
    weight: Affine<S>,
    out: &mut [X],
    product: &Product,
) {
    let Affine { codes, scales, biases, group_size, bits } = weight;
    let k = product.k;
    assert!(
        group_size.is_multiple_of(LANES) && k.is_multiple_of(group_size),
        "groups of {group_size} in {k}"
    );
    let (words, groups) = (k * bits / 32, k / group_size);
    let rows = product.weight_rows();
    assert_eq!(
        (codes.len(), scales.len(), biases.len()),
        (rows * words, rows * groups, rows * groups),
        "codes, scales and biases of {rows} rows of {k}"
    );
    let chunks_per_group = group_size / LANES;
    macro_rules! with_bits {
        ($($b:literal)*) => {
            match bits {
                $($b => {
                    let weight = Quantized::<S, $b> { codes, scales, biases, words, groups, chunks_per_group };
                    multiply(x, weight, out, product)
                })*
                _ => panic!("{bits} bits per weight; 2, 3, 4, 5, 6 and 8 exist"),
            }
        };
    }
    with_bits!(2 3 4 5 6 8);
}

/// A matrix if its rows hold `words` of codes and `groups` of scales; as its own [`Row`], those of one row.
#[derive(Clone, Copy)]
struct Quantized<'a, S, const BITS: usize> {
    codes: &'a [u32],
    scales: &'a [S],
    biases: &'a [S],
    words: usize,
    groups: usize,
    chunks_per_group: usize,
}

impl<S: Scalar, const BITS: usize> Matrix for Quantized<'_, S, BITS> {
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

impl<S: Scalar, const BITS: usize> Row for Quantized<'_, S, BITS> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        let codes = unpack::<BITS>(self.codes, chunk);
        let group = chunk / self.chunks_per_group;
        let (scale, bias) = (self.scales[group].to_f32(), self.biases[group].to_f32());
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
