//! Dequantises rows of a matrix: the look-up of an embedding.

use crate::{linear::Affine, scalar::Scalar};

/// Rows `indices` of `weight` `[rows, k]`: `out[i, j] = code * scale + bias` in float32, rounded to
/// `T`.
///
/// # Panics
/// If a row does not exist.
pub fn dequantize_rows<T: Scalar>(weight: Affine, indices: &[u32], out: &mut [T], k: usize) {
    let Affine { codes, scales, biases, group_size, bits } = weight;
    let (words, groups, mask) = (k * bits / 32, k / group_size, (1u64 << bits) - 1);
    assert_eq!(out.len(), indices.len() * k, "out is not [{}, {k}]", indices.len());
    for (&index, out) in indices.iter().zip(out.chunks_exact_mut(k)) {
        let row = index as usize;
        let codes = &codes[row * words..][..words];
        for (j, out) in out.iter_mut().enumerate() {
            // A code may cross words.
            let (word, shift) = (j * bits / 32, j * bits % 32);
            let next = codes.get(word + 1).copied().unwrap_or(0);
            let code = ((u64::from(codes[word]) | u64::from(next) << 32) >> shift) & mask;
            let group = row * groups + j / group_size;
            let (scale, bias) = (scales.at(group), biases.at(group));
            *out = T::from_f32(code as f32 * scale + bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Floats;

    #[test]
    fn dequantize_rows_of_every_code_width_matches_bits() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let (k, rows) = (64usize, 3usize);
            let code = |row: usize, j: usize| ((row * 31 + j * 7) % (1 << bits)) as u32;
            let mut codes = vec![0u32; rows * k * bits / 32];
            for (row, words) in codes.chunks_exact_mut(k * bits / 32).enumerate() {
                for bit in 0..k * bits {
                    words[bit / 32] |= (code(row, bit / bits) >> (bit % bits) & 1) << (bit % 32);
                }
            }
            const SCALES: [f32; 6] = [0.5f32, 2.0, -1.0, 0.25, 3.0, 1.5];
            const BIASES: [f32; 6] = [0.0f32, -1.0, 2.0, 0.5, 1.0, -3.0];
            let (scales, biases) = (Floats::F32(&SCALES), Floats::F32(&BIASES));
            let weight = Affine { codes: &codes, scales, biases, group_size: 32, bits };
            let mut out = vec![0.0f32; 2 * k];
            dequantize_rows(weight, &[2, 0], &mut out, k);
            for (i, row) in [2, 0].into_iter().enumerate() {
                for j in 0..k {
                    let group = row * 2 + j / 32;
                    let expected = code(row, j) as f32 * SCALES[group] + BIASES[group];
                    assert_eq!(out[i * k + j], expected, "{bits} bits, row {row}, value {j}");
                }
            }
        }
    }
}
