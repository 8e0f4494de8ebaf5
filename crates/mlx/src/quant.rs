//! MLX's quantised formats: one matrix, or a stack of them, as codes with scales per group of inputs.

use crate::{Array, Dtype, array::built, bridge, eval::list, eval::unlist, fused};

/// What codes and scales mean.
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

/// How one matrix is quantised.
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
    /// `x · Wᵀ`, `x` `[.., inputs]`. Row-invariant on the CPU, as [`fast::linear`](crate::fast::linear).
    #[track_caller]
    pub fn matmul(&self, x: &Array) -> Array {
        if fused::runs(x, Dtype::Float32) {
            return fused::quantized_matmul(x, self);
        }
        self.matmul_mlx(x)
    }

    /// [`matmul`](Quantized::matmul) by MLX's own operation.
    #[track_caller]
    pub(crate) fn matmul_mlx(&self, x: &Array) -> Array {
        let Quantization { mode, group_size, bits } = self.quantization;
        built(bridge::quantized_matmul(&x.0, &self.parts(), group_size, bits, mode.name()))
    }

    /// As [`fast::grouped_linear`](crate::fast::grouped_linear), for a quantised stack.
    #[track_caller]
    pub fn grouped_matmul(&self, x: &Array, indices: &Array) -> Array {
        if fused::runs(x, Dtype::Float32) {
            return fused::grouped_quantized_matmul(x, self, indices);
        }
        self.grouped_matmul_mlx(x, indices)
    }

    /// [`grouped_matmul`](Quantized::grouped_matmul) by MLX's own operation.
    #[track_caller]
    pub(crate) fn grouped_matmul_mlx(&self, x: &Array, indices: &Array) -> Array {
        let Quantization { mode, group_size, bits } = self.quantization;
        let x = x.reshape(&[x.dim(0), x.dim(1), 1, x.dim(2)]);
        let out = built(bridge::gather_qmm(&x.0, &self.parts(), &indices.0, group_size, bits, mode.name()));
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
        // MLX dequantises affine codes in the scales' type: converting afterwards would round twice.
        let cast = |array: &Array| if array.dtype().is_float() { array.astype(dtype) } else { array.clone() };
        let parts: Vec<Array> = [Some(&self.codes), Some(&self.scales), self.biases.as_ref()]
            .into_iter()
            .flatten()
            .map(cast)
            .collect();
        built(bridge::dequantize(&list(&parts), group_size, bits, mode.name(), dtype))
    }

    pub(crate) fn inputs(&self) -> i32 {
        self.codes.dim(-1) * 32 / self.quantization.bits
    }

    fn parts(&self) -> cxx::UniquePtr<bridge::Arrays> {
        list([Some(&self.codes), Some(&self.scales), self.biases.as_ref()].into_iter().flatten())
    }
}

/// Codes, scales and biases of `w` `[.., inputs]`, as `mx.quantize` packs them.
#[track_caller]
pub fn quantize(w: &Array, quantization: Quantization) -> Quantized {
    if quantization.mode != Mode::Affine && fused::runs(w, Dtype::Float32) {
        let [codes, scales] = fused::pack_floats(w, quantization);
        return Quantized { codes, scales, biases: None, quantization };
    }
    mlx_quantize(w, quantization)
}

#[track_caller]
fn mlx_quantize(w: &Array, quantization: Quantization) -> Quantized {
    let Quantization { mode, group_size, bits } = quantization;
    let mut parts = unlist(bridge::quantize(&w.0, group_size, bits, mode.name())).into_iter();
    let mut part = || parts.next().unwrap_or_else(|| panic!("{} has codes and scales", mode.name()));
    Quantized { codes: part(), scales: part(), biases: parts.next(), quantization }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Our packing against MLX's operations: rows of all magnitudes, and every 16-bit number there is.
    #[test]
    fn packed_bytes_are_mlx_own() {
        crate::use_gpu(false).unwrap();
        let noise = |i: u64| {
            let z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 33
        };
        let value =
            |i: u64| ((noise(i) % 20011) as f32 / 10000.0 - 1.0) * ((i / 64 % 80) as f32 - 40.0).exp2();
        let values: Vec<f32> = (0..1 << 19).map(|i| if i < 64 { 0.0 } else { value(i) }).collect();
        let values = Array::from_slice(&values, &[1 << 12, 128]);
        [Dtype::Float32, Dtype::Bfloat16].into_iter().for_each(|dtype| check(&values.astype(dtype)));
        // Scales of smaller numbers do not fit into a byte: there MLX's wrap around, ours are the smallest.
        let all = (0..=u16::MAX).map(bf16::from_bits);
        check(&alone_and_among_others(all.filter(|v| (1e-35..1e37).contains(&v.to_f32().abs())).collect()));
        let all = (0..=u16::MAX).map(f16::from_bits);
        check(&alone_and_among_others(all.filter(|v| v.is_finite()).collect()));
    }

    /// Each value as the largest of a group whose others are fractions of it, then groups of neighbours.
    fn alone_and_among_others<T: crate::Element>(values: Vec<T>) -> Array {
        let kept = values.len() / 64 * 64;
        let values = Array::from_slice(&values[..kept], &[kept as i32, 1]);
        let fractions: Vec<f32> = (0..32).map(|i| 1.0 - i as f32 / 31.0 * 1.9).collect();
        let fractions = Array::from_slice(&fractions, &[1, 32]).astype(values.dtype());
        Array::concatenate([&(&values * &fractions), &values.reshape(&[-1, 32])], 0)
    }

    fn check(w: &Array) {
        for quantization in Mode::ALL.into_iter().filter_map(Mode::fixed) {
            let (ours, theirs) = (quantize(w, quantization), mlx_quantize(w, quantization));
            let groups = |q: &Quantized| {
                let scales = q.scales.to_vec::<u8>().unwrap();
                let words = (quantization.bits * quantization.group_size / 32) as usize;
                let codes: Vec<Vec<u32>> =
                    q.codes.to_vec::<u32>().unwrap().chunks(words).map(<[u32]>::to_vec).collect();
                (scales, codes)
            };
            let (ours, theirs) = (groups(&ours), groups(&theirs));
            let values = w.to_f32().unwrap();
            for i in 0..ours.0.len() {
                let group =
                    &values[i * quantization.group_size as usize..][..quantization.group_size as usize];
                assert_eq!(
                    (ours.0[i], &ours.1[i]),
                    (theirs.0[i], &theirs.1[i]),
                    "{:?} {:?} {group:?}",
                    quantization.mode,
                    w.dtype()
                );
            }
        }
    }
}
