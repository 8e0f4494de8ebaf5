//! Sides rounded to whole patches, within limits of pixels.

/// The multiple of `factor` nearest to `value`; of two equally near ones, the even multiple.
pub(super) fn round_to(value: u32, factor: u32) -> u32 {
    (f64::from(value) / f64::from(factor)).round_ties_even() as u32 * factor
}

/// Rounds sides to multiples of `factor` whose product is between `min_pixels` and `max_pixels`,
/// with about the same aspect ratio: `smart_resize` of Qwen2-VL.
pub(super) fn smart_resize(
    (width, height): (u32, u32),
    factor: u32,
    (at_least_width, at_least_height): (u32, u32),
    min_pixels: u64,
    max_pixels: u64,
) -> (u32, u32) {
    let (w, h, f) = (f64::from(width), f64::from(height), f64::from(factor));
    let rounded_width = round_to(width, factor).max(at_least_width);
    let rounded_height = round_to(height, factor).max(at_least_height);
    let pixels = u64::from(rounded_width) * u64::from(rounded_height);
    if pixels > max_pixels {
        let beta = ((h * w) / max_pixels as f64).sqrt();
        let shrink = |side: f64| ((side / beta / f).floor() as u32 * factor).max(factor);
        (shrink(w), shrink(h))
    } else if pixels < min_pixels {
        let beta = (min_pixels as f64 / (h * w)).sqrt();
        let grow = |side: f64| (side * beta / f).ceil() as u32 * factor;
        (grow(w), grow(h))
    } else {
        (rounded_width, rounded_height)
    }
}
