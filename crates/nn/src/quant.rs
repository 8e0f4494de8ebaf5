//! Quantising weights, in the formats of [`mlx::quant`].

use mlx::{
    Array,
    quant::{Quantization, Quantized},
};

use crate::backend::on_backend;

/// Codes, scales and biases of `w` `[.., inputs]`, packed as `mx.quantize` packs them.
#[track_caller]
pub fn quantize(w: &Array, quantization: Quantization) -> Quantized {
    on_backend!(quantize(w, quantization))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use mlx::{
        Dtype,
        quant::{self, Mode},
    };

    use super::*;

    /// Our packing against MLX's operations: rows of all magnitudes, and every 16-bit number.
    #[test]
    fn quantized_floats_have_the_bytes_of_mlx() {
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
        // Scales of smaller numbers do not fit into a byte: there MLX's wrap around, ours are the
        // smallest.
        let all = (0..=u16::MAX).map(bf16::from_bits);
        check(&alone_and_among_others(all.filter(|v| (1e-35..1e37).contains(&v.to_f32().abs())).collect()));
        let all = (0..=u16::MAX).map(f16::from_bits);
        check(&alone_and_among_others(all.filter(|v| v.is_finite()).collect()));
    }

    /// Each value as the largest of a group whose others are fractions of it, then groups of
    /// neighbours.
    fn alone_and_among_others<T: mlx::Element>(values: Vec<T>) -> Array {
        let kept = values.len() / 64 * 64;
        let values = Array::from_slice(&values[..kept], &[kept as i32, 1]);
        let fractions: Vec<f32> = (0..32).map(|i| 1.0 - i as f32 / 31.0 * 1.9).collect();
        let fractions = Array::from_slice(&fractions, &[1, 32]).astype(values.dtype());
        Array::concatenate([&(&values * &fractions), &values.reshape(&[-1, 32])], 0)
    }

    fn check(w: &Array) {
        for quantization in Mode::ALL.into_iter().filter_map(Mode::fixed) {
            let (ours, theirs) = (quantize(w, quantization), quant::quantize(w, quantization));
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
