//! Rotary positions of prompts with images, in models whose positions have three axes: time, height
//! and width (Wang et al., "Qwen2-VL", 2024).
//!
//! Text advances all axes together. An image stands at one point in time, its tokens at their rows
//! and columns from there, and text goes on after the larger side. So a token's position is not its
//! index any more; it follows from the images before it.

use std::ops::Range;

/// Positions of a sequence's tokens.
#[derive(Debug, PartialEq)]
pub(crate) struct ImagePositions {
    images: Vec<PlacedImage>,
}

#[derive(Debug, PartialEq)]
struct PlacedImage {
    span: Range<usize>,
    columns: usize,
    /// Its first token's position on every axis.
    position: i32,
    /// Difference between index and position of the tokens after it.
    lag: i32,
}

impl ImagePositions {
    /// For images at these spans, ascending, of these rows and columns of tokens.
    pub(crate) fn new(images: impl IntoIterator<Item = (Range<usize>, [usize; 2])>) -> ImagePositions {
        let mut lag = 0;
        let place = |(span, [rows, columns]): (Range<usize>, [usize; 2])| {
            let position = span.start as i32 - lag;
            lag = span.end as i32 - (position + rows.max(columns) as i32);
            PlacedImage { span, columns, position, lag }
        };
        ImagePositions { images: images.into_iter().map(place).collect() }
    }

    /// Time, height and width of the token at `index`.
    pub(crate) fn at(&self, index: usize) -> [i32; 3] {
        let before = self.images.partition_point(|image| image.span.start <= index);
        let Some(image) = before.checked_sub(1).map(|last| &self.images[last]) else {
            return [index as i32; 3];
        };
        if image.span.contains(&index) {
            let token = index - image.span.start;
            let (row, column) = (token / image.columns, token % image.columns);
            return [image.position, image.position + row as i32, image.position + column as i32];
        }
        [index as i32 - image.lag; 3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_on_after_the_larger_side_of_an_image() {
        let positions = ImagePositions::new([(2..8, [2, 3]), (9..13, [4, 1])]);
        let found: Vec<[i32; 3]> = (0..15).map(|index| positions.at(index)).collect();
        let expected = [
            [0, 0, 0],
            [1, 1, 1],
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            [5, 5, 5],
            [6, 6, 6],
            [6, 7, 6],
            [6, 8, 6],
            [6, 9, 6],
            [10, 10, 10],
            [11, 11, 11],
        ];
        assert_eq!(found, expected);
        assert_eq!(ImagePositions::new([]).at(7), [7; 3]);
    }
}
