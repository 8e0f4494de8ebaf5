//! Quantisation of rows of `x`: the loop that all instruction sets share, and its portable steps.

use super::inputs::{ActivationWidth, InputGroup, LARGEST, UnfilledTile};
use crate::{
    cache_line::CacheLine,
    linear::tiling::INPUT_BLOCK,
    simd::{WithSimd, dispatch},
};

/// Portable, storing integers as 16 bits.
pub(super) fn quantize(tile: UnfilledTile) {
    dispatch(tile);
}

/// Quantises groups and stores blocks with the instructions of one instruction set.
pub(crate) trait Quantizer: Copy {
    /// The largest magnitude of a multiple of 16 numbers, and whether none is above [`LARGEST`] or
    /// NaN; if one is, the magnitude has no meaning.
    fn largest(self, values: &[f32]) -> (f32, bool);

    /// Rounds a group, a multiple of 16 numbers, times `inverse` to integers; returns their sum.
    fn round(self, values: &[f32], integers: &mut [i32], inverse: f32, width: ActivationWidth) -> i32;

    /// The lines of a block of integers, place `i` holding integer `order[i]`. The second line is
    /// unused for integers of one byte where the processor multiplies bytes.
    fn lines(
        self,
        integers: &[i32; INPUT_BLOCK],
        order: &[u8; INPUT_BLOCK],
        width: ActivationWidth,
    ) -> [CacheLine; 2];
}

impl UnfilledTile<'_> {
    #[inline(always)]
    pub(crate) fn fill(self, quantizer: impl Quantizer) {
        let UnfilledTile { x, k, sources, layout, width, planes, lines, groups } = self;
        let (rows, group, order) = (sources.len(), layout.group, layout.order());
        // A group of 128 fills two blocks. Smaller groups share a block's step.
        let span = group.max(INPUT_BLOCK);
        let mut integers = [0i32; 2 * INPUT_BLOCK];
        for (r, &source) in sources.iter().enumerate() {
            let row = &x[source as usize * k..][..k];
            for (i, values) in row.chunks(span).enumerate() {
                let filled = values.len().next_multiple_of(INPUT_BLOCK);
                // Rarely: filling nothing would still cost a call.
                if filled > values.len() {
                    integers[values.len()..filled].fill(0);
                }
                let (max, finite) = quantizer.largest(values);
                let inverse = InputGroup::inverse_step(max, finite, width);
                for (g, values) in values.chunks(group).enumerate() {
                    let integers = &mut integers[g * group..][..group];
                    groups[(i * span / group + g) * rows + r] = match inverse {
                        Some(inverse) => {
                            let total = quantizer.round(values, integers, inverse, width);
                            InputGroup::new(max, total, layout.excess, width)
                        }
                        None => {
                            integers.fill(0);
                            InputGroup::zeros(finite)
                        }
                    };
                }
                let blocks =
                    integers.as_chunks::<INPUT_BLOCK>().0.iter().take(values.len().div_ceil(INPUT_BLOCK));
                for (b, integers) in blocks.enumerate() {
                    let at = planes * (i * span / INPUT_BLOCK + b) * rows + r;
                    let [first, second] = quantizer.lines(integers, order, width);
                    lines[at] = first;
                    if planes == 2 {
                        lines[at + rows] = second;
                    }
                }
            }
        }
    }
}

/// Stores integers as 16 bits.
#[derive(Clone, Copy)]
struct PortableQuantizer;

impl WithSimd for UnfilledTile<'_> {
    #[inline(always)]
    fn run(self) {
        self.fill(PortableQuantizer);
    }
}

impl Quantizer for PortableQuantizer {
    #[inline(always)]
    fn largest(self, values: &[f32]) -> (f32, bool) {
        largest(values)
    }

    #[inline(always)]
    fn round(self, values: &[f32], integers: &mut [i32], inverse: f32, width: ActivationWidth) -> i32 {
        round(values, integers, inverse, width)
    }

    /// The first and third integer of each four, then the second and fourth.
    #[inline(always)]
    fn lines(
        self,
        integers: &[i32; INPUT_BLOCK],
        order: &[u8; INPUT_BLOCK],
        _width: ActivationWidth,
    ) -> [CacheLine; 2] {
        let mut lines = [CacheLine::ZERO; 2];
        for i in 0..16 {
            for (first, line) in lines.iter_mut().enumerate() {
                let half = |place: usize| integers[order[4 * i + place] as usize % INPUT_BLOCK] as u16 as u32;
                line.0[i] = half(first) | half(first + 2) << 16;
            }
        }
        lines
    }
}

#[inline(always)]
fn largest(values: &[f32]) -> (f32, bool) {
    let mut largest = [0.0f32; 16];
    // Not `f32::max`, which ignores NaN.
    let mut finite = true;
    for values in values.as_chunks::<16>().0 {
        for i in 0..16 {
            largest[i] = if values[i].abs() > largest[i] { values[i].abs() } else { largest[i] };
        }
        for value in values {
            finite &= value.abs() <= LARGEST;
        }
    }
    let mut max = 0.0f32;
    for value in largest {
        max = if value > max { value } else { max };
    }
    (max, finite)
}

#[inline(always)]
fn round(values: &[f32], integers: &mut [i32], inverse: f32, width: ActivationWidth) -> i32 {
    let mut total = 0;
    for (values, integers) in values.as_chunks::<16>().0.iter().zip(integers.as_chunks_mut::<16>().0) {
        for i in 0..16 {
            // SAFETY: magnitudes are at most the largest integer, apart from rounding.
            integers[i] = unsafe { width.round(values[i] * inverse).to_int_unchecked::<i32>() };
        }
        for integer in integers {
            total += *integer;
        }
    }
    total
}
