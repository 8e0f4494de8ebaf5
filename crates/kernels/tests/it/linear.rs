//! Products with each weight format, against float64 and against themselves one row at a time.

use crate::support::{
    order,
    weights::{self, AffineParts, FloatParts, Integers, small_float},
    *,
};
use half::{bf16, f16};
use lanner_kernels::{Precision::*, *};
use proptest::prelude::*;

fn exact_linear(x: &[f32], w: &[f32], k: usize) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(a, b)| *a as f64 * *b as f64).sum();
    x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot(x, w))).collect()
}

const FORMATS: [FloatFormat; 3] = [FloatFormat::Mxfp4, FloatFormat::Mxfp8, FloatFormat::Nvfp4];

/// Rows of `x`: few, about a tile, more than two tiles.
fn rows() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..6, 14usize..19, 30usize..53]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn linear_of_dense_weights_matches_its_definition(m in rows(), k in 1usize..300, n in 1usize..75, seed in 0u64..1000) {
        let (f32s, f16s, bf16s) = (noise::<f32>(seed, n * k), noise::<f16>(seed, n * k), noise::<bf16>(seed, n * k));
        check(m, k, n, Weight::Dense(Floats::F32(&f32s)), &f32s, Expected::Exact);
        check(m, k, n, Weight::Dense(Floats::F16(&f16s)), &narrow(&f16s), Expected::Exact);
        check(m, k, n, Weight::Dense(Floats::Bf16(&bf16s)), &narrow(&bf16s), Expected::Bfloat16);
    }

    #[test]
    fn linear_of_affine_weights_matches_its_definition(
        m in rows(), groups in 1usize..6, n in 1usize..70, seed in 0u64..1000,
        bits in prop::sample::select(vec![2usize, 3, 4, 4, 4, 5, 6, 8]),
        group_size in prop::sample::select(vec![32usize, 64, 128]),
    ) {
        let parts = AffineParts::random(seed, n, groups, group_size, bits);
        check(m, parts.k, n, parts.weight(), &parts.unpacked(), Expected::Integers(parts.integers()));
    }

    #[test]
    fn linear_of_microscaled_weights_matches_its_definition(
        m in rows(), groups in 1usize..9, n in 1usize..70, seed in 0u64..1000,
        format in prop::sample::select(FORMATS.to_vec()),
    ) {
        let parts = FloatParts::random(seed, n, groups, format);
        let expected = parts.integers().map_or(Expected::Bfloat16, Expected::Integers);
        check(m, parts.k, n, parts.weight(), &parts.unpacked(), expected);
    }
}

#[test]
fn packed_weight_matches_the_affine_weight() {
    let mut cases = 0;
    for (bits, group_size) in [(2, 32), (2, 128), (4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)] {
        for (n, groups) in [(16, 1), (48, 3), (160, 9)] {
            let parts = AffineParts::random(7, n, groups, group_size, bits);
            let (f16s, bf16s) = (parts.floats::<f16>(), parts.floats::<bf16>());
            let floats = [
                [Floats::F32(&parts.scales), Floats::F32(&parts.biases)],
                [Floats::F16(&f16s[0]), Floats::F16(&f16s[1])],
                [Floats::Bf16(&bf16s[0]), Floats::Bf16(&bf16s[1])],
            ];
            for [scales, biases] in floats {
                let affine = Affine { codes: &parts.codes, scales, biases, group_size, bits };
                check_packed(affine, n, parts.k);
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 72);
}

fn check_packed(affine: Affine, n: usize, k: usize) {
    let packing = PackedLayout::for_weight(&affine, n).expect("whole blocks");
    assert!(
        PackedLayout::for_weight(&affine, n - 1).is_none()
            && PackedLayout::for_weight(&Affine { bits: 3, ..affine }, n).is_none()
    );
    let mut memory = vec![u32::MAX; packing.words(n, k)];
    packing.pack(affine, k, &mut memory);
    let packed = Packed::new(packing, k, &memory);
    for m in [1, 2, 3, 5, 8, 9, 13, 20, 70] {
        let x = noise::<f32>(m as u64, m * k);
        for precision in [Rounded, Int8] {
            let of = |weight| {
                let mut out = unwritten(m * n);
                linear(&x, weight, &mut out, k, n, precision);
                bits(&out)
            };
            assert_eq!(
                of(Weight::Packed(packed)),
                of(Weight::Affine(affine)),
                "{packing:?}, {m} rows of {k}"
            );
        }
    }
    let indices = [n as u32 - 1, 0, 9];
    let (mut rows, mut expected) = (unwritten::<f32>(3 * k), unwritten::<f32>(3 * k));
    packed.dequantize_rows(&indices, &mut rows);
    dequantize_rows(affine, &indices, &mut expected, k);
    assert_eq!(bits(&rows), bits(&expected));
}

#[test]
#[should_panic(expected = "a weight packed for products of integers, in float32")]
fn packed_weight_in_float32_panics() {
    let parts = AffineParts::random(7, 16, 2, 64, 4);
    let Weight::Affine(affine) = parts.weight() else { unreachable!("affine") };
    let packing = PackedLayout::for_weight(&affine, 16).expect("one block");
    let mut memory = vec![0; packing.words(16, parts.k)];
    packing.pack(affine, parts.k, &mut memory);
    let packed = Packed::new(packing, parts.k, &memory);
    linear(&vec![0.0; parts.k], Weight::Packed(packed), &mut [0.0; 16], parts.k, 16, Float32);
}

/// The expected result of a rounded product.
enum Expected {
    /// Computed in float32.
    Exact,
    Bfloat16,
    Integers(Integers),
}

/// In all precisions: matches float64, row-invariant, and bit-identical to the documented order.
fn check(m: usize, k: usize, n: usize, weight: Weight, unpacked: &[f32], expected: Expected) {
    let x = noise::<f32>(77, m * k);
    let product = |x: &[f32], precision| {
        let mut out = unwritten(x.len() / k * n);
        linear(x, weight, &mut out, k, n, precision);
        out
    };
    let alone = |precision| x.chunks(k).flat_map(|x| product(x, precision)).collect::<Vec<f32>>();
    let [full, rounded, narrow] = [Float32, Rounded, Int8].map(|precision| product(&x, precision));
    let largest = unpacked.iter().fold(1.0f32, |most, w| most.max(w.abs()));
    let exact = exact_linear(&x, unpacked, k);
    close(&full, &exact, 2e-6 * k as f64 * largest as f64);
    assert_eq!(bits(&alone(Float32)), bits(&full));
    assert_eq!(bits(&alone(Rounded)), bits(&rounded));
    assert_eq!(bits(&alone(Int8)), bits(&narrow));
    let rows = x.chunks(k);
    let [expected, expected_narrow]: [Vec<f32>; 2] = match expected {
        Expected::Exact => [full.clone(), full],
        Expected::Bfloat16 => {
            let rounded: Vec<f32> = rows.flat_map(|x| order::in_bfloat16(x, unpacked, k)).collect();
            [rounded.clone(), rounded]
        }
        Expected::Integers(weight) => {
            // Half of the last of 11 bits, or half a step, of each number at most.
            close(&rounded, &exact, 2.5e-4 * k as f64 * largest as f64);
            close(&narrow, &exact, 4e-3 * k as f64 * largest as f64);
            [order::to_halves, order::to_bytes]
                .map(|round| rows.clone().flat_map(|x| order::in_integers(x, &weight, k, round)).collect())
        }
    };
    assert_eq!(bits(&rounded), bits(&expected), "{}", simd_level().name());
    assert_eq!(bits(&narrow), bits(&expected_narrow), "8 bits, {}", simd_level().name());
}

fn narrow<T: Scalar>(values: &[T]) -> Vec<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}

#[test]
fn linears_of_mixed_formats_match_linear() {
    let (m, k) = (37, 320);
    let x = noise::<f32>(5, m * k);
    let dense = noise::<bf16>(1, 20 * k);
    let full = noise::<f32>(2, 9 * k);
    let (four, eight) = (AffineParts::random(3, 64, 5, 64, 4), AffineParts::random(4, 33, 5, 64, 8));
    let floats = FloatParts::random(6, 48, 10, FloatFormat::Mxfp4);
    let weights = [
        (Weight::Dense(Floats::Bf16(&dense)), 20),
        (four.weight(), 64),
        (Weight::Dense(Floats::F32(&full)), 9),
        (eight.weight(), 33),
        (floats.weight(), 48),
    ];
    for rows in [1, 3, m] {
        let x = &x[..rows * k];
        for precision in [Float32, Rounded, Int8] {
            let mut outs: Vec<Vec<f32>> = weights.iter().map(|(_, n)| unwritten(rows * n)).collect();
            let mut matmuls: Vec<Matmul> = weights
                .iter()
                .zip(&mut outs)
                .map(|((weight, n), out)| Matmul { weight: *weight, n: *n, out })
                .collect();
            linears(x, k, &mut matmuls, precision);
            for ((weight, n), out) in weights.iter().zip(&outs) {
                let mut alone = unwritten(rows * n);
                linear(x, *weight, &mut alone, k, *n, precision);
                assert_eq!(bits(out), bits(&alone));
            }
        }
    }
}

#[test]
fn gated_linear_matches_its_separate_steps() {
    let (k, n) = (320, 75);
    let dense = noise::<bf16>(1, n * k);
    let (four, other, six) = (
        AffineParts::random(3, n, 5, 64, 4),
        AffineParts::random(4, n, 5, 64, 4),
        AffineParts::random(5, n, 5, 64, 6),
    );
    let pairs = [
        (four.weight(), other.weight()),
        (four.weight(), six.weight()),
        (six.weight(), Weight::Dense(Floats::Bf16(&dense))),
    ];
    for (gate, up) in pairs {
        for (m, activation) in [(1, Activation::Silu), (19, Activation::GeluTanh), (300, Activation::Silu)] {
            let x = noise::<f32>(6, m * k);
            for precision in [Float32, Rounded, Int8] {
                let (mut gates, mut ups, mut expected) =
                    (unwritten(m * n), unwritten(m * n), unwritten::<f32>(m * n));
                linear(&x, gate, &mut gates, k, n, precision);
                linear(&x, up, &mut ups, k, n, precision);
                gated(&gates, &ups, &mut expected, activation);
                let mut got = unwritten(m * n);
                gated_linear(&x, gate, up, activation, &mut got, k, n, precision);
                assert_eq!(bits(&got), bits(&expected));
            }
        }
    }
}

#[test]
fn scales_of_16_bits_match_the_same_scales_in_float32() {
    let (k, n) = (128, 40);
    let parts = AffineParts::random(8, n, 2, 64, 4);
    let (scales, biases) = (noise::<bf16>(1, 2 * n), noise::<bf16>(2, 2 * n));
    let (scales16, biases16) = (noise::<f16>(1, 2 * n), noise::<f16>(2, 2 * n));
    let x = noise::<f32>(3, k);
    let product = |scales: Floats, biases: Floats, precision| {
        let mut out = unwritten(n);
        let weight = Affine { codes: &parts.codes, scales, biases, group_size: 64, bits: 4 };
        linear(&x, Weight::Affine(weight), &mut out, k, n, precision);
        bits(&out)
    };
    for precision in [Float32, Rounded, Int8] {
        let (wide, wide_biases) = (narrow(&scales), narrow(&biases));
        assert_eq!(
            product(Floats::Bf16(&scales), Floats::Bf16(&biases), precision),
            product(Floats::F32(&wide), Floats::F32(&wide_biases), precision)
        );
        let (wide, wide_biases) = (narrow(&scales16), narrow(&biases16));
        assert_eq!(
            product(Floats::F16(&scales16), Floats::F16(&biases16), precision),
            product(Floats::F32(&wide), Floats::F32(&wide_biases), precision)
        );
    }
}

/// Many tasks and threads, a partial panel of columns, a partial tile of rows.
#[test]
fn linear_of_a_large_product_is_row_invariant() {
    let (m, k, n) = (83, 512, 1000);
    let parts = AffineParts::random(11, n, k / 64, 64, 4);
    let x = noise::<f32>(12, m * k);
    let mut out = unwritten(m * n);
    linear(&x, parts.weight(), &mut out, k, n, Rounded);
    for i in [0, 1, 15, 16, 31, 32, 63, 64, 82] {
        let mut alone = unwritten(n);
        linear(&x[i * k..][..k], parts.weight(), &mut alone, k, n, Rounded);
        assert_eq!(bits(&alone), bits(&out[i * n..][..n]), "row {i}");
    }
    let scale: f64 = (k as f64).sqrt();
    let exact = exact_linear(&x, &parts.unpacked(), k);
    out.iter().zip(&exact).for_each(|(got, exact)| assert!((*got as f64 - exact).abs() < 4e-3 * scale));
}

#[test]
fn infinities_and_nans_in_x_stay_in_their_rows() {
    let (k, n) = (64, 33);
    let parts = AffineParts::random(1, n, 1, 64, 4);
    let mut x = noise::<f32>(2, 3 * k);
    x[5] = f32::NAN;
    x[k + 7] = f32::INFINITY;
    let mut out = unwritten(3 * n);
    linear(&x, parts.weight(), &mut out, k, n, Rounded);
    assert!(out[..n].iter().all(|v| v.is_nan()));
    assert!(out[n..2 * n].iter().all(|v| !v.is_finite()));
    assert!(out[2 * n..].iter().all(|v| v.is_finite()));
}

/// The value of a code with a scale, read through products with the identity.
fn values(format: FloatFormat, code: u32, scale: u8) -> f32 {
    let (width, group) = weights::layout(format);
    let codes = vec![if width == 4 { code * 0x1111_1111 } else { code * 0x0101_0101 }; group * width / 32];
    let weight = Weight::Microscaled(Microscaled { codes: &codes, scales: &[scale], format });
    let mut identity = vec![0.0f32; group * group];
    identity.iter_mut().step_by(group + 1).for_each(|x| *x = 1.0);
    let mut out = unwritten::<f32>(group);
    linear(&identity, weight, &mut out, group, 1, Float32);
    assert!(out.iter().all(|v| v.to_bits() == out[0].to_bits()), "{format:?} {code} {scale}: {out:?}");
    let value = out[0];
    linear(&identity, weight, &mut out, group, 1, Rounded);
    // A one is 8192 steps.
    let same = |v: &f32| (v - value).abs() <= 2e-7 * value.abs() || !value.is_finite() || value.abs() < 1e-36;
    assert!(out.iter().all(same), "{format:?} {code} {scale}: {out:?} for {value}");
    value
}

#[test]
fn every_microscaled_code_has_its_value() {
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
fn every_microscaled_scale_has_its_value() {
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
