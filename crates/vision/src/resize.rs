//! Resizing with antialiasing, to the bit as torchvision does it on bytes.
//!
//! Columns first, then rows, each rounded to bytes: one call for both directions would do rows
//! first, and differ by up to 24 of 255.

use fast_image_resize::{
    FilterType, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
    pixels::U8x3,
};

use crate::{Deadline, Error, Result, RgbImage};

/// An interpolation filter; both are widened when an image shrinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// The triangle filter, `resample` 2 of Pillow.
    Bilinear,
    /// The Catmull-Rom spline, `resample` 3 of Pillow.
    Bicubic,
}

/// Resizes an image; the size must not be zero.
pub(crate) fn resize(
    image: &RgbImage,
    (width, height): (u32, u32),
    filter: Filter,
    deadline: Deadline,
) -> Result<RgbImage> {
    let columns = match width == image.width {
        true => image.clone(),
        false => pass(image, (width, image.height), filter)?,
    };
    deadline.check()?;
    match height == image.height {
        true => Ok(columns),
        false => pass(&columns, (width, height), filter),
    }
}

/// Resizes one direction.
fn pass(image: &RgbImage, (width, height): (u32, u32), filter: Filter) -> Result<RgbImage> {
    let filter = match filter {
        Filter::Bilinear => FilterType::Bilinear,
        Filter::Bicubic => FilterType::CatmullRom,
    };
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).use_alpha(false);
    let failed = |error: &dyn std::fmt::Display| Error::Size {
        width: image.width,
        height: image.height,
        rule: format!("it cannot be resized to {width}x{height}: {error}; send another size"),
    };
    // Typed: `Resizer::resize` would be compiled for fourteen kinds of pixels.
    let source = TypedImageRef::<U8x3>::from_buffer(image.width, image.height, &image.data)
        .map_err(|error| failed(&error))?;
    let mut data = vec![0; 3 * width as usize * height as usize];
    let mut target = TypedImage::from_buffer(width, height, &mut data).map_err(|error| failed(&error))?;
    Resizer::new().resize_typed::<U8x3>(&source, &mut target, &options).map_err(|error| failed(&error))?;
    Ok(RgbImage { width, height, data })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Limits;

    /// One row or column in integer arithmetic: PyTorch's `upsample_*_aa` kernels for bytes.
    fn scalar(line: &[u8], length: usize, filter: Filter) -> Vec<u8> {
        let scale = line.len() as f64 / length as f64;
        let stretch = scale.max(1.0);
        let support = stretch * if filter == Filter::Bicubic { 2.0 } else { 1.0 };
        let rows: Vec<(usize, Vec<f64>)> = (0..length)
            .map(|index| {
                let center = (index as f64 + 0.5) * scale;
                let start = (center - support + 0.5).max(0.0) as usize;
                let end = ((center + support + 0.5) as usize).min(line.len());
                let weight = |x: usize| weight((x as f64 - center + 0.5) / stretch, filter);
                let weights: Vec<f64> = (start..end).map(weight).collect();
                let sum: f64 = weights.iter().sum();
                (start, weights.iter().map(|weight| weight / sum).collect())
            })
            .collect();
        let largest = rows.iter().flat_map(|(_, weights)| weights).fold(0.0_f64, |a, b| a.max(*b));
        // As many bits as keep weights within 16 bits.
        let is_full = |bits: &i32| (largest * f64::from(1 << (bits + 1))).round() >= 32768.0;
        let bits = (0..22).find(is_full).unwrap_or(21);
        rows.iter()
            .map(|(start, weights)| {
                let products = weights.iter().zip(&line[*start..]).map(|(weight, value)| {
                    (weight * f64::from(1 << bits)).round() as i32 * i32::from(*value)
                });
                let sum = (1 << (bits - 1)) + products.sum::<i32>();
                (sum >> bits).clamp(0, 255) as u8
            })
            .collect()
    }

    fn weight(x: f64, filter: Filter) -> f64 {
        let x = x.abs();
        match filter {
            Filter::Bilinear => (1.0 - x).max(0.0),
            Filter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Filter::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Filter::Bicubic => 0.0,
        }
    }

    proptest! {
        #[test]
        fn resized_image_equals_scalar_reference(
            (width, height, target_width, target_height) in (1..70_u32, 1..70_u32, 1..70_u32, 1..70_u32),
            seed: u64,
            bicubic: bool,
        ) {
            let filter = if bicubic { Filter::Bicubic } else { Filter::Bilinear };
            let mut state = seed | 1;
            let mut byte = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Extremes make the filter overshoot.
                [0, 255, (state >> 40) as u8][(state >> 61) as usize % 3]
            };
            let data: Vec<u8> = (0..3 * width * height).map(|_| byte()).collect();
            let image = RgbImage { width, height, data };
            let deadline = Limits::default().deadline();
            let resized = resize(&image, (target_width, target_height), filter, deadline).unwrap();
            for channel in 0..3 {
                let rows: Vec<Vec<u8>> = image.data.chunks_exact(3 * width as usize).map(|row| {
                    let row: Vec<u8> = row.iter().skip(channel).step_by(3).copied().collect();
                    if target_width == width { row } else { scalar(&row, target_width as usize, filter) }
                }).collect();
                for x in 0..target_width as usize {
                    let column: Vec<u8> = rows.iter().map(|row| row[x]).collect();
                    let expected = if target_height == height { column } else {
                        scalar(&column, target_height as usize, filter)
                    };
                    let found: Vec<u8> = resized.data.iter().skip(3 * x + channel)
                        .step_by(3 * target_width as usize).copied().collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
