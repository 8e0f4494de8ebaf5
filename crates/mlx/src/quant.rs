//! MLX's quantised formats: a matrix, or a stack of them, as codes with a scale per group of
//! inputs.

use crate::{
    Array, Dtype,
    array::built,
    bridge,
    eval::{list, unlist},
};

/// The meaning of codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Integer code * scale + bias.
    Affine,
    /// 4-bit floats, a power of two per 32 (OCP microscaling).
    Mxfp4,
    /// 8-bit floats, a power of two per 32 (OCP microscaling).
    Mxfp8,
    /// 4-bit floats, an 8-bit float per 16.
    Nvfp4,
}

/// The quantisation of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    pub mode: Mode,
    /// Inputs that share a scale: 32, 64 or 128 if affine, else the mode's own.
    pub group_size: i32,
    /// Bits per code: 2, 3, 4, 5, 6 or 8 if affine, else the mode's own.
    pub bits: i32,
}

/// A quantised matrix `[outputs, inputs]`, or a stack of them `[n, outputs, inputs]`.
#[derive(Clone)]
pub struct Quantized {
    /// Uint32 `[.., inputs * bits / 32]`.
    pub codes: Array,
    /// `[.., inputs / group_size]`: floating-point if affine, else uint8.
    pub scales: Array,
    /// Shaped and typed like `scales`; affine only.
    pub biases: Option<Array>,
    pub quantization: Quantization,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4];

    /// The name config.json and MLX use.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }

    /// Group size and bits, where the mode allows one pair only.
    pub fn fixed(self) -> Option<Quantization> {
        let (group_size, bits) = match self {
            Mode::Affine => return None,
            Mode::Mxfp4 => (32, 4),
            Mode::Mxfp8 => (32, 8),
            Mode::Nvfp4 => (16, 4),
        };
        Some(Quantization { mode: self, group_size, bits })
    }
}

impl Quantized {
    /// `x · Wᵀ`, `x` `[.., inputs]`.
    #[track_caller]
    pub fn matmul(&self, x: &Array) -> Array {
        let Quantization { mode, group_size, bits } = self.quantization;
        built(bridge::quantized_matmul(&x.host(), &list(self.parts()), group_size, bits, mode.name()))
    }

    /// One product per token and chosen matrix of a stack: `x` `[tokens, 1 or n, inputs]`,
    /// `indices` uint32 `[tokens, n]`; returns `[tokens, n, outputs]`.
    #[track_caller]
    pub fn gather_matmul(&self, x: &Array, indices: &Array) -> Array {
        let Quantization { mode, group_size, bits } = self.quantization;
        let x = x.reshape(&[x.dim(0), x.dim(1), 1, x.dim(2)]);
        let out = built(bridge::gather_qmm(
            &x.host(),
            &list(self.parts()),
            &indices.host(),
            group_size,
            bits,
            mode.name(),
        ));
        out.reshape(&[indices.dim(0), indices.dim(1), -1])
    }

    /// The rows `indices` of a matrix, dequantised.
    #[track_caller]
    pub fn rows(&self, indices: &Array, dtype: Dtype) -> Array {
        let part = |array: &Array| array.take(indices, 0);
        let (codes, scales, biases) = (part(&self.codes), part(&self.scales), self.biases.as_ref().map(part));
        Quantized { codes, scales, biases, quantization: self.quantization }.dequantize(dtype)
    }

    /// The values themselves.
    #[track_caller]
    pub fn dequantize(&self, dtype: Dtype) -> Array {
        let Quantization { mode, group_size, bits } = self.quantization;
        // MLX dequantises affine codes in the scales' type: converting afterwards would round
        // twice.
        let cast = |array: &Array| if array.dtype().is_float() { array.astype(dtype) } else { array.clone() };
        let parts: Vec<Array> = self.parts().map(cast).collect();
        built(bridge::dequantize(&list(&parts), group_size, bits, mode.name(), dtype))
    }

    /// Inputs of one matrix.
    pub fn inputs(&self) -> i32 {
        self.codes.dim(-1) * 32 / self.quantization.bits
    }

    /// Codes, scales and, of an affine matrix, biases.
    pub fn parts(&self) -> impl Iterator<Item = &Array> {
        [Some(&self.codes), Some(&self.scales), self.biases.as_ref()].into_iter().flatten()
    }
}

/// Codes, scales and biases of `w` `[.., inputs]`, as `mx.quantize` packs them.
#[track_caller]
pub fn quantize(w: &Array, quantization: Quantization) -> Quantized {
    let Quantization { mode, group_size, bits } = quantization;
    let mut parts = unlist(bridge::quantize(&w.host(), group_size, bits, mode.name())).into_iter();
    let mut part = || parts.next().unwrap_or_else(|| panic!("{} has codes and scales", mode.name()));
    Quantized { codes: part(), scales: part(), biases: parts.next(), quantization }
}
