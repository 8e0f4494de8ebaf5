//! Sixteen float32 lanes and the one order in which every dot product is summed.

use crate::scalar::Scalar;

pub const LANES: usize = 16;
pub type Lanes = [f32; LANES];

/// Lane `i` accumulates elements `i`, `i + 16`, `i + 32`...; this then adds the lanes as a fixed tree.
#[inline(always)]
pub fn reduce(lanes: &Lanes) -> f32 {
    let mut sums = *lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

#[inline(always)]
pub fn load(values: &[f32], chunk: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(&values[chunk * LANES..][..LANES]);
    lanes
}

/// Chunk `chunk` of a row as float32, zeros past the row's end.
#[inline(always)]
pub fn load_scalar<T: Scalar>(row: &[T], chunk: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    let rest = &row[chunk * LANES..];
    if let Some(values) = rest.first_chunk::<LANES>() {
        for i in 0..LANES {
            lanes[i] = values[i].to_f32();
        }
    } else {
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane = v.to_f32();
        }
    }
    lanes
}

/// `accumulator + a * b`, each lane rounded once.
#[inline(always)]
pub fn fma(accumulator: &mut Lanes, a: &Lanes, b: &Lanes) {
    for i in 0..LANES {
        accumulator[i] = a[i].mul_add(b[i], accumulator[i]);
    }
}

/// Dot product of slices whose length is a multiple of 16.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for chunk in 0..a.len() / LANES {
        fma(&mut sums, &load(a, chunk), &load(b, chunk));
    }
    reduce(&sums)
}

/// `exp(x)` for `x <= 0` or moderate, to about 1 unit in the last place; 0 below the normal range.
///
/// Written out (range reduction by ln 2, then a polynomial of degree 6) so that it vectorises and gives the same
/// bits on every platform, which the C library's does not.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (fraction, power) = exp_parts(x);
    let scaled = (fraction + 1.0) * power;
    if x < -87.0 { 0.0 } else { scaled }
}

/// `exp(x)` as `(1 + fraction) * power`, `power` a power of two and `fraction` within about 0.42 of 0.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Added to a number below 2²², leaves it rounded to an integer, in the lowest bits.
    const ROUNDED: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.0, 88.0);
    let rounded = clamped.mul_add(std::f32::consts::LOG2_E, ROUNDED);
    let n = rounded - ROUNDED;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    let p = r.mul_add(1.987_569_1e-4, 1.398_199_9e-3);
    let p = r.mul_add(p, 8.333_452e-3);
    let p = r.mul_add(p, 4.166_579_6e-2);
    let p = r.mul_add(p, 1.666_666_5e-1);
    let p = r.mul_add(p, 0.5);
    ((r * r).mul_add(p, r), f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23)))
}

/// `tanh(x)` to a few units in the last place, small `x` included.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // Through exp(-2|x|) - 1, which keeps the digits that exp itself rounds away next to 1.
    let (fraction, power) = exp_parts(-2.0 * x.abs());
    let below_one = power.mul_add(fraction, power - 1.0);
    (-below_one / (2.0 + below_one)).copysign(x)
}

#[inline(always)]
pub fn silu(x: f32) -> f32 {
    // For x > 0 the plain form; both halves keep exp's argument at or below 0.
    let e = exp(-x.abs());
    if x >= 0.0 { x / (1.0 + e) } else { x * e / (1.0 + e) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for i in 0..200_000 {
            let x = -86.0 + i as f32 * 8e-4;
            let (got, exact) = (exp(x) as f64, (x as f64).exp());
            let ulp = (exact as f32).abs() as f64 * f64::from(f32::EPSILON);
            assert!((got - exact).abs() <= 2.0 * ulp, "exp({x}) = {got}, exact {exact}");
        }
        assert_eq!((exp(0.0), exp(-1e9), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn silu_matches_its_definition() {
        for x in [-90.0f32, -10.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 10.0, 90.0] {
            let exact = x as f64 / (1.0 + (-x as f64).exp());
            assert!((silu(x) as f64 - exact).abs() <= 1e-6 * exact.abs().max(1e-6), "silu({x})");
        }
    }
    #[test]
    fn tanh_is_close_everywhere_and_keeps_small_numbers() {
        for i in 0..400_000 {
            let x = (i - 200_000) as f32 * 5e-5;
            let (got, exact) = (tanh(x) as f64, (x as f64).tanh());
            assert!((got - exact).abs() <= 2e-7, "tanh({x}) = {got}, exact {exact}");
            assert!((got - exact).abs() <= 4e-7 * exact.abs(), "tanh({x}) = {got}, exact {exact}");
        }
        assert_eq!((tanh(0.0), tanh(100.0), tanh(f32::NEG_INFINITY)), (0.0, 1.0, -1.0));
        assert!(tanh(f32::NAN).is_nan());
    }
}
