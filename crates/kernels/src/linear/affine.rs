//! MLX's affine weight format: small integers with a scale and a bias per group.

use super::weight::Floats;

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
    pub(crate) fn check(&self, rows: usize, k: usize) {
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
