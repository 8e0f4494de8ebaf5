//! Sixteen float32 lanes, the order of summation of dot products, and elementary functions on
//! lanes.

use crate::scalar::Scalar;

pub(crate) const LANES: usize = 16;
pub(crate) type Lanes = [f32; LANES];

/// Adds the lanes as a fixed tree. Lane `i` is the sum of elements `i`, `i + 16`, `i + 32`...
#[inline(always)]
pub(crate) fn reduce(lanes: &Lanes) -> f32 {
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
pub(crate) fn load(values: &[f32], chunk: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(&values[chunk * LANES..][..LANES]);
    lanes
}

/// Chunk `chunk` of a row as float32, zeros past the row's end.
#[inline(always)]
pub(crate) fn load_scalar<T: Scalar>(row: &[T], chunk: usize) -> Lanes {
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

/// Rounds the lanes into up to 16 values.
#[inline(always)]
pub(crate) fn store_scalar<T: Scalar>(lanes: &Lanes, to: &mut [T]) {
    if let Some(to) = to.first_chunk_mut::<LANES>() {
        for i in 0..LANES {
            to[i] = T::from_f32(lanes[i]);
        }
    } else {
        for (to, lane) in to.iter_mut().zip(lanes) {
            *to = T::from_f32(*lane);
        }
    }
}

/// `accumulator + a * b`, each lane rounded once.
#[inline(always)]
pub(crate) fn fma(accumulator: &mut Lanes, a: &Lanes, b: &Lanes) {
    for i in 0..LANES {
        accumulator[i] = a[i].mul_add(b[i], accumulator[i]);
    }
}

/// Dot product of slices whose length is a multiple of 16.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for chunk in 0..a.len() / LANES {
        fma(&mut sums, &load(a, chunk), &load(b, chunk));
    }
    reduce(&sums)
}

/// `exp(x)` for `x <= 0` or moderate, to about 1 unit in the last place; 0 below the normal range.
///
/// Range reduction by ln 2, then a polynomial of degree 6. Unlike the C library's, it vectorises
/// and gives the same bits on every platform.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (fraction, power) = exp_parts(x);
    let scaled = (fraction + 1.0) * power;
    if x < -87.0 { 0.0 } else { scaled }
}

/// `exp(x)` as `(1 + fraction) * power`, `power` a power of two and `fraction` within about 0.42 of
/// 0.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding it to a number below 2²² rounds that to an integer, in the lowest bits.
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

/// `ln(x)` for normal positive `x`, to about 1 unit in the last place.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // x = m 2ⁿ, m in [√½, √2); ln m = 2 atanh(s), s = (m - 1) / (m + 1) at most 0.172.
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let offset = x.to_bits().wrapping_sub(SQRT_HALF);
    let n = (offset as i32 >> 23) as f32;
    let m = f32::from_bits((offset & 0x007f_ffff) + SQRT_HALF);
    let f = m - 1.0;
    let s = f / (m + 1.0);
    let square = s * s;
    let series = square.mul_add(2.0 / 9.0, 2.0 / 7.0);
    let series = square.mul_add(series, 2.0 / 5.0);
    let series = square.mul_add(series, 2.0 / 3.0);
    // 2 s = f - s f, which keeps the digits of f.
    let small = s.mul_add(square.mul_add(series, -f), n * LN2_LOW);
    n.mul_add(LN2_HIGH, f + small)
}

/// `tanh(x)` to a few units in the last place, small `x` included.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // exp(-2|x|) - 1, without the digits that exp rounds away next to 1.
    let (fraction, power) = exp_parts(-2.0 * x.abs());
    let below_one = power.mul_add(fraction, power - 1.0);
    (-below_one / (2.0 + below_one)).copysign(x)
}

#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    // Both branches keep exp's argument at or below 0.
    let e = exp(-x.abs());
    (if x >= 0.0 { x } else { x * e }) / (1.0 + e)
}

/// `1 / (1 + exp(-x))`
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// `ln(1 + exp(x))` to a few units in the last place.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    // ln(1 + y) is 2 atanh(s), s = y / (2 + y) at most 1/3; the omitted terms of its series are
    // below 2⁻²⁵ of it.
    let y = exp(-x.abs());
    let s = y / (2.0 + y);
    let square = s * s;
    let mut series = 1.0 / 15.0;
    for divisor in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = square.mul_add(series, 1.0 / divisor);
    }
    let positive = if x > 0.0 { x } else { 0.0 };
    // Adding 0 times x propagates NaN.
    (2.0 * s).mul_add(series, positive) + 0.0 * x.clamp(-1.0, 1.0)
}

/// The largest argument for which [`sin_cos`] is accurate.
pub(crate) const MAX_RADIANS: f32 = 1e6;

/// Sine and cosine to about 1e-7, for `|x|` up to [`MAX_RADIANS`].
#[inline(always)]
pub(crate) fn sin_cos(x: f32) -> (f32, f32) {
    // The multiple of π/2 is subtracted in three parts; the first product is exact.
    const HIGH: f32 = 1.570_796_4;
    const MIDDLE: f32 = -4.371_139e-8;
    const LOW: f32 = -1.715_124_5e-15;
    const ROUNDED: f32 = 12_582_912.0;
    let rounded = x.mul_add(std::f32::consts::FRAC_2_PI, ROUNDED);
    let n = rounded - ROUNDED;
    let r = n.mul_add(-LOW, n.mul_add(-MIDDLE, n.mul_add(-HIGH, x)));
    let square = r * r;
    let p = square.mul_add(-1.951_529_6e-4, 8.332_161e-3);
    let sin = (square * r).mul_add(square.mul_add(p, -1.666_665_5e-1), r);
    let p = square.mul_add(2.443_315_7e-5, -1.388_731_6e-3);
    let p = square.mul_add(p, 4.166_664_6e-2);
    let cos = (square * square).mul_add(p, square.mul_add(-0.5, 1.0));
    let quadrant = rounded.to_bits();
    let (sin, cos) = if quadrant & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let negative = |bit: u32| (bit & 2) << 30;
    (
        f32::from_bits(sin.to_bits() ^ negative(quadrant)),
        f32::from_bits(cos.to_bits() ^ negative(quadrant.wrapping_add(1))),
    )
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
    fn ln_is_within_2e_7_of_exact() {
        for i in 0..400_000u32 {
            let x = f32::from_bits(0x0080_0000 + i * 5300);
            let (got, exact) = (ln(x) as f64, (x as f64).ln());
            assert!((got - exact).abs() <= 2e-7 * exact.abs(), "ln({x}) = {got}, exact {exact}");
        }
        for i in -1000..1000 {
            let x = 1.0 + i as f32 * f32::EPSILON;
            assert!(
                (ln(x) as f64 - (x as f64).ln()).abs() <= 2e-7 * (x as f64).ln().abs(),
                "ln({x}) = {}",
                ln(x)
            );
        }
    }

    #[test]
    fn silu_matches_its_definition() {
        for x in [-90.0f32, -10.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 10.0, 90.0] {
            let exact = x as f64 / (1.0 + (-x as f64).exp());
            assert!((silu(x) as f64 - exact).abs() <= 1e-6 * exact.abs().max(1e-6), "silu({x})");
        }
    }

    #[test]
    fn softplus_and_sigmoid_match_their_definitions() {
        for i in 0..200_000 {
            let x = (i - 100_000) as f32 * 8e-4;
            let wide = x as f64;
            for (got, exact) in [
                (softplus(x), wide.max(0.0) + (-wide.abs()).exp().ln_1p()),
                (sigmoid(x), 1.0 / (1.0 + (-wide).exp())),
            ] {
                assert!((got as f64 - exact).abs() <= 4e-7 * exact, "{got} at {x}, exact {exact}");
            }
        }
        assert!(softplus(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!((softplus(f32::INFINITY), softplus(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
    }

    #[test]
    fn sin_cos_is_accurate_up_to_a_million_radians() {
        for i in 0..400_000 {
            let x = if i % 2 == 0 { (i - 200_000) as f32 * 1e-4 } else { (i - 200_000) as f32 * 4.999_37 };
            let (sin, cos) = sin_cos(x);
            let (exact_sin, exact_cos) = (x as f64).sin_cos();
            assert!((sin as f64 - exact_sin).abs() < 1.2e-7, "sin({x}) = {sin}, exact {exact_sin}");
            assert!((cos as f64 - exact_cos).abs() < 1.2e-7, "cos({x}) = {cos}, exact {exact_cos}");
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
