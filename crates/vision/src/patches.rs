//! Pixels to the tensors that vision towers read: planes, or patches in the order of a family.

use crate::{RgbImage, normalize::Normalization};

/// A part of an image in pixels; its sides are multiples of the patch where it is cut into patches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub(crate) left: usize,
    pub(crate) top: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Area {
    pub(crate) fn of(image: &RgbImage) -> Area {
        Area { left: 0, top: 0, width: image.width as usize, height: image.height as usize }
    }
}

impl RgbImage {
    /// `length` pixels of row `y` from column `x`.
    fn run(&self, x: usize, y: usize, length: usize) -> &[u8] {
        let start = 3 * (y * self.width as usize + x);
        &self.data[start..start + 3 * length]
    }
}

/// Planes, `[3, height, width]`.
pub(crate) fn planes(image: &RgbImage, normalization: &Normalization) -> Vec<f32> {
    let mut values = Vec::with_capacity(image.data.len());
    for channel in 0..3 {
        normalization.append_channel(channel, &image.data, &mut values);
    }
    values
}

/// Patches row by row, channels last: `[rows * columns, patch, patch, 3]`.
pub(crate) fn raster(image: &RgbImage, area: Area, patch: usize, normalization: &Normalization) -> Vec<f32> {
    let mut values = Vec::with_capacity(3 * area.width * area.height);
    for top in (area.top..area.top + area.height).step_by(patch) {
        for left in (area.left..area.left + area.width).step_by(patch) {
            for y in top..top + patch {
                normalization.append_interleaved(image.run(left, y, patch), &mut values);
            }
        }
    }
    values
}

/// Patches in the order in which a tower merges `merge` x `merge` of them, channels first, the one
/// frame repeated: `[rows * columns, 3, frames, patch, patch]`.
pub(crate) fn merge_order(
    image: &RgbImage,
    patch: usize,
    merge: usize,
    frames: usize,
    normalization: &Normalization,
) -> Vec<f32> {
    let (width, height) = (image.width as usize, image.height as usize);
    let block = patch * merge;
    let mut values = Vec::with_capacity(3 * frames * width * height);
    for block_top in (0..height).step_by(block) {
        for block_left in (0..width).step_by(block) {
            for top in (block_top..block_top + block).step_by(patch) {
                for left in (block_left..block_left + block).step_by(patch) {
                    append_patch(image, (left, top), patch, frames, normalization, &mut values);
                }
            }
        }
    }
    values
}

fn append_patch(
    image: &RgbImage,
    (left, top): (usize, usize),
    patch: usize,
    frames: usize,
    normalization: &Normalization,
    values: &mut Vec<f32>,
) {
    for channel in 0..3 {
        let start = values.len();
        for y in top..top + patch {
            normalization.append_channel(channel, image.run(left, y, patch), values);
        }
        for _ in 1..frames {
            values.extend_from_within(start..start + patch * patch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 4x4 image whose channels hold 0 to 15 with offsets 0, 100 and 200.
    fn numbered() -> RgbImage {
        let data = (0..16).flat_map(|value| [value, 100 + value, 200 + value]).collect();
        RgbImage { width: 4, height: 4, data }
    }

    fn identity() -> Normalization {
        Normalization::rescale(1.0)
    }

    #[test]
    fn planes_hold_one_channel_after_the_other() {
        let values = planes(&numbered(), &identity());
        assert_eq!(values[..4], [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(values[16..18], [100.0, 101.0]);
        assert_eq!(values[47], 215.0);
    }

    #[test]
    fn raster_patches_are_channels_last() {
        let image = numbered();
        let values = raster(&image, Area::of(&image), 2, &identity());
        assert_eq!(values[..6], [0.0, 100.0, 200.0, 1.0, 101.0, 201.0]);
        assert_eq!(values[6], 4.0);
        assert_eq!(values[12], 2.0, "the second patch");
        let right = Area { left: 2, top: 2, width: 2, height: 2 };
        assert_eq!(raster(&image, right, 2, &identity())[..3], [10.0, 110.0, 210.0]);
    }

    #[test]
    fn merged_patches_are_block_by_block_with_frames_repeated() {
        let values = merge_order(&numbered(), 1, 2, 2, &identity());
        let red: Vec<f32> = values.iter().step_by(6).copied().collect();
        let expected = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        assert_eq!(red, expected.map(|value| value as f32));
        assert_eq!(values[..6], [0.0, 0.0, 100.0, 100.0, 200.0, 200.0]);
    }
}
