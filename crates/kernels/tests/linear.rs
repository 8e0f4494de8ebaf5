//! Products with every weight format against plain ones, and against themselves one row at a time, bit for bit.

mod common;

use common::{
    weights::{self, AffineParts, FloatParts, small_float},
    *,
};
use half::{bf16, f16};
use kernels::*;
use proptest::prelude::*;

fn exact_linear(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(a, b)| a * b).sum();
    x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot(x, w))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn linear_is_right_and_row_invariant(m in 1usize..23, k in 1usize..150, n in 1usize..75, seed in 0u64..1000) {
        check_dense::<f32, f32>(m, k, n, seed);
        check_dense::<bf16, bf16>(m, k, n, seed);
        check_dense::<f16, f32>(m, k, n, seed);
    }

    #[test]
    fn quantized_linear_is_the_dense_one_on_unpacked_weights(
        m in 1usize..12, groups in 1usize..4, n in 1usize..70, seed in 0u64..1000,
        bits in prop::sample::select(vec![2usize, 3, 4, 5, 6, 8]),
        group_size in prop::sample::select(vec![32usize, 64, 128]),
    ) {
        let parts = AffineParts::random(seed, n, groups, group_size, bits);
        check_unpacked(m, parts.k, n, &parts.unpacked(), |x, out| {
            quantized_linear(x, parts.weight(), out, parts.k, n)
        });
    }

    #[test]
    fn microscaled_linear_is_the_dense_one_on_unpacked_weights(
        m in 1usize..12, groups in 1usize..7, n in 1usize..70, seed in 0u64..1000,
        format in prop::sample::select(vec![FloatFormat::Mxfp4, FloatFormat::Mxfp8, FloatFormat::Nvfp4]),
    ) {
        let parts = FloatParts::random(seed, n, groups, format);
        check_unpacked(m, parts.k, n, &parts.unpacked(), |x, out| {
            microscaled_linear(x, parts.weight(), out, parts.k, n)
        });
    }
}

fn check_dense<X: Float, W: Float>(m: usize, k: usize, n: usize, seed: u64) {
    let (x, w) = (noise::<X>(seed, m * k), noise::<W>(seed + 1, n * k));
    let mut out = unwritten(m * n);
    linear(&x, &w, &mut out, k, n);
    close(&out, &exact_linear(&wide(&x), &wide(&w), k), 1e-6 * k as f64);
    for i in 0..m {
        let mut alone = unwritten(n);
        linear(&x[i * k..][..k], &w, &mut alone, k, n);
        assert_eq!(bits(&alone), bits(&out[i * n..][..n]));
    }
}

/// The same bits as a dense float32 weight that holds the unpacked values.
fn check_unpacked(m: usize, k: usize, n: usize, dense: &[f32], product: impl Fn(&[f32], &mut [f32])) {
    let x = noise::<f32>(77, m * k);
    let (mut got, mut expected) = (unwritten::<f32>(m * n), unwritten::<f32>(m * n));
    product(&x, &mut got);
    linear(&x, dense, &mut expected, k, n);
    assert_eq!(bits(&got), bits(&expected));
}

/// Reads a matrix value by value: one group per row, `x` a row of the identity for each place in the group.
fn values(format: FloatFormat, code: u32, scale: u8) -> f32 {
    let (width, group) = weights::layout(format);
    let codes = vec![if width == 4 { code * 0x1111_1111 } else { code * 0x0101_0101 }; group * width / 32];
    let weight = Microscaled { codes: &codes, scales: &[scale], format };
    let mut identity = vec![0.0f32; group * group];
    identity.iter_mut().step_by(group + 1).for_each(|x| *x = 1.0);
    let mut out = unwritten::<f32>(group);
    microscaled_linear(&identity, weight, &mut out, group, 1);
    assert!(out.iter().all(|v| v.to_bits() == out[0].to_bits()), "{format:?} {code} {scale}: {out:?}");
    out[0]
}

#[test]
fn every_code_has_its_value() {
    let table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for code in 0..16 {
        let value = table[code as usize % 8] * if code < 8 { 1.0 } else { -1.0 };
        assert_eq!(values(FloatFormat::Mxfp4, code, 127), value);
        assert_eq!(values(FloatFormat::Nvfp4, code, 0x38), value);
    }
    for code in 0..256 {
        let value = values(FloatFormat::Mxfp8, code, 128);
        match code & 0x7f {
            0x7f => assert!(value.is_nan(), "code {code}"),
            _ => assert_eq!(value as f64, 2.0 * small_float(code, 4, 3), "code {code}"),
        }
    }
}

#[test]
fn every_scale_has_its_value() {
    for scale in 0..=254u8 {
        let exact = 2f64.powi(scale as i32 - 127);
        assert_eq!(values(FloatFormat::Mxfp4, 2, scale) as f64, exact, "scale {scale}");
        assert_eq!(values(FloatFormat::Mxfp8, 0x38, scale) as f64, exact, "scale {scale}");
    }
    for scale in (0..=255u8).filter(|scale| scale & 0x7f != 0x7f) {
        assert_eq!(values(FloatFormat::Nvfp4, 2, scale) as f64, small_float(scale as u32, 4, 3));
    }
    assert!(!values(FloatFormat::Mxfp4, 2, 255).is_finite());
    assert!(values(FloatFormat::Nvfp4, 2, 0x7f).is_nan());
}
