//! The documented orders of summation of rounded products, computed number by number.

use half::{bf16, f16};
use lanner_kernels::{SimdLevel, simd_level};

use super::weights::Integers;

/// One row of `x` with every row of `weight` `[n, k]`, in bfloat16, in the order of this
/// processor's instructions.
pub(crate) fn in_bfloat16(x: &[f32], weight: &[f32], k: usize) -> Vec<f32> {
    let x = blocks(x);
    let dot = if simd_level() == SimdLevel::Amx { tiles } else { lanes };
    weight.chunks(k).map(|row| dot(&blocks(row), &x)).collect()
}

/// One row of `x`, rounded to integers, with every row of a weight of integers.
pub(crate) fn in_integers(x: &[f32], weight: &Integers, k: usize, round: Rounding) -> Vec<f32> {
    let group = weight.group;
    // Groups smaller than 64 share a step.
    let rounded: Vec<(f32, Vec<i64>)> = x
        .chunks(group.max(64))
        .map(round)
        .flat_map(|(step, integers)| {
            integers.chunks(group).map(|own| (step, own.to_vec())).collect::<Vec<_>>()
        })
        .collect();
    let output = |row: usize| {
        let (mut sum, mut part) = (0.0f32, 0.0f32);
        for (g, (step, integers)) in rounded.iter().enumerate() {
            let codes = &weight.codes[row * k + g * group..][..group];
            let dot: i64 = codes.iter().zip(integers).map(|(code, x)| code * x).sum();
            let total: i64 = integers.iter().sum();
            let [scale, bias] = weight.scales[row * k / group + g];
            part = scale.mul_add(dot as f32 * step, part);
            part = bias.mul_add(total as f32 * step, part);
            // Segments of 512 inputs are summed from zero.
            if ((g + 1) * group).is_multiple_of(512) {
                (sum, part) = (sum + part, 0.0);
            }
        }
        sum + part
    };
    (0..weight.codes.len() / k).map(output).collect()
}

/// The step of some numbers, and their integers.
pub(crate) type Rounding = fn(&[f32]) -> (f32, Vec<i64>);

/// Integers up to 127.
pub(crate) fn to_bytes(values: &[f32]) -> (f32, Vec<i64>) {
    let largest = largest(values);
    if largest < 1e-30 {
        return (0.0, vec![0; values.len()]);
    }
    let inverse = 127.0 / largest;
    (largest / 127.0, values.iter().map(|v| (v * inverse).round_ties_even() as i64).collect())
}

/// Integers of 14 bits, of which half precision keeps 11: its smallest number counts as one.
pub(crate) fn to_halves(values: &[f32]) -> (f32, Vec<i64>) {
    let largest = largest(values);
    if largest < 1e-30 {
        return (0.0, vec![0; values.len()]);
    }
    let step = 2f64.powi(f64::from(largest).log2().floor() as i32 - 13);
    let smallest = 2f64.powi(-24);
    let integer =
        |v: &f32| (f16::from_f32((f64::from(*v) / step * smallest) as f32).to_f64() / smallest) as i64;
    (step as f32, values.iter().map(integer).collect())
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |largest, v| largest.max(v.abs()))
}

/// A row rounded to bfloat16, in lines of 32 numbers.
fn blocks(row: &[f32]) -> Vec<[f32; 32]> {
    let mut lines = vec![];
    for block in row.chunks(64) {
        let value = |i: usize| block.get(i).map_or(0.0, |v| bf16::from_f32(*v).to_f32());
        lines.extend([0, 32].map(|start| std::array::from_fn(|i| value(start + i))));
    }
    lines
}

fn lanes(w: &[[f32; 32]], x: &[[f32; 32]]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (w, x) in w.iter().zip(x) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = w[2 * i + 1].mul_add(x[2 * i + 1], *sum);
            *sum = w[2 * i].mul_add(x[2 * i], *sum);
        }
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0]
}

fn tiles(w: &[[f32; 32]], x: &[[f32; 32]]) -> f32 {
    let mut sum = 0.0f32;
    for (w, x) in w.iter().zip(x) {
        let mut halves = [0.0f32; 2];
        for i in 0..32 {
            halves[i % 2] = w[i].mul_add(x[i], halves[i % 2]);
        }
        sum += halves[0] + halves[1];
    }
    sum
}
