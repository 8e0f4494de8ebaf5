//! EXIF orientation: read from an EXIF or XMP block, applied to pixels.

use crate::RgbImage;

/// How stored pixels are turned or mirrored for display: tag 274 of EXIF, 1 to 8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Orientation {
    /// 1: as stored.
    #[default]
    Normal,
    /// 2: mirrored left to right.
    FlipHorizontal,
    /// 3: turned by 180 degrees.
    Rotate180,
    /// 4: mirrored top to bottom.
    FlipVertical,
    /// 5: mirrored at the main diagonal.
    Transpose,
    /// 6: turned clockwise by 90 degrees.
    Rotate90,
    /// 7: mirrored at the other diagonal.
    Transverse,
    /// 8: turned clockwise by 270 degrees.
    Rotate270,
}

const ORIENTATION_TAG: u16 = 0x0112;

impl Orientation {
    /// The orientation with this number; numbers other than 1 to 8 mean [`Orientation::Normal`].
    pub fn from_number(number: u16) -> Orientation {
        match number {
            2 => Orientation::FlipHorizontal,
            3 => Orientation::Rotate180,
            4 => Orientation::FlipVertical,
            5 => Orientation::Transpose,
            6 => Orientation::Rotate90,
            7 => Orientation::Transverse,
            8 => Orientation::Rotate270,
            _ => Orientation::Normal,
        }
    }

    /// Reads the orientation from the first directory of an EXIF block (a TIFF header, with or
    /// without `Exif\0\0` before it); `None` if the block is malformed or has no such tag.
    pub fn from_exif(block: &[u8]) -> Option<Orientation> {
        let tiff = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
        let big_endian = match tiff.get(..4)? {
            b"II*\0" => false,
            b"MM\0*" => true,
            _ => return None,
        };
        let u16_at = |at: usize| {
            let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
            Some(if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
        };
        let u32_at = |at: usize| {
            let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
            Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
        };
        let directory = u32_at(4)? as usize;
        let entries = directory.checked_add(2)?;
        for index in 0..usize::from(u16_at(directory)?) {
            let entry = entries.checked_add(12 * index)?;
            if u16_at(entry)? == ORIENTATION_TAG {
                // Type 3 is SHORT, whose value fills the first half of the field.
                let is_short = u16_at(entry + 2)? == 3 && u32_at(entry + 4)? == 1;
                return is_short.then(|| u16_at(entry + 8).map(Orientation::from_number))?;
            }
        }
        None
    }

    /// Reads `tiff:Orientation` from an XMP packet, as an attribute or an element.
    pub fn from_xmp(packet: &[u8]) -> Option<Orientation> {
        const NAME: &[u8] = b"tiff:Orientation";
        packet.windows(NAME.len() + 3).filter(|window| window.starts_with(NAME)).find_map(|window| {
            let digit = match &window[NAME.len()..] {
                [b'=', b'"', digit] | [b'>', digit, _] if digit.is_ascii_digit() => digit,
                _ => return None,
            };
            Some(Orientation::from_number(u16::from(digit - b'0')))
        })
    }

    /// Whether width and height change places.
    pub fn swaps_sides(self) -> bool {
        use Orientation::{Rotate90, Rotate270, Transpose, Transverse};
        matches!(self, Transpose | Rotate90 | Transverse | Rotate270)
    }

    /// Width and height after this orientation is applied.
    pub fn oriented_size(self, width: u32, height: u32) -> (u32, u32) {
        if self.swaps_sides() { (height, width) } else { (width, height) }
    }

    /// Turns and mirrors an image for display.
    pub(crate) fn apply(self, image: RgbImage) -> RgbImage {
        match self {
            Orientation::Normal => image,
            Orientation::FlipHorizontal | Orientation::Rotate180 | Orientation::FlipVertical => {
                self.flip(image)
            }
            _ => self.swap_sides(&image),
        }
    }

    /// Mirrors rows, columns or both, in place.
    fn flip(self, mut image: RgbImage) -> RgbImage {
        let stride = 3 * image.width as usize;
        if self != Orientation::FlipVertical {
            for row in image.data.chunks_exact_mut(stride) {
                row.as_chunks_mut::<3>().0.reverse();
            }
        }
        if self != Orientation::FlipHorizontal {
            let height = image.height as usize;
            let (top, bottom) = image.data.split_at_mut(height / 2 * stride);
            let bottom = bottom.chunks_exact_mut(stride).rev();
            top.chunks_exact_mut(stride).zip(bottom).for_each(|(a, b)| a.swap_with_slice(b));
        }
        image
    }

    /// The orientations that exchange rows and columns.
    fn swap_sides(self, image: &RgbImage) -> RgbImage {
        let (width, height) = (image.width as usize, image.height as usize);
        let source = image.data.as_chunks::<3>().0;
        let mut data = Vec::with_capacity(image.data.len());
        for x in 0..width {
            let x = match self {
                Orientation::Transverse | Orientation::Rotate270 => width - 1 - x,
                _ => x,
            };
            for y in 0..height {
                let y = match self {
                    Orientation::Rotate90 | Orientation::Transverse => height - 1 - y,
                    _ => y,
                };
                data.extend_from_slice(&source[y * width + x]);
            }
        }
        RgbImage { width: image.height, height: image.width, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One channel of a 3x2 image with the values 1 to 6.
    #[track_caller]
    fn check(number: u16, expected_width: u32, expected: &[u8]) {
        let data = (1..=6).flat_map(|value| [value; 3]).collect();
        let image = Orientation::from_number(number).apply(RgbImage { width: 3, height: 2, data });
        assert_eq!((image.width, image.height), (expected_width, 6 / expected_width));
        let channel: Vec<u8> = image.data.as_chunks::<3>().0.iter().map(|pixel| pixel[0]).collect();
        assert_eq!(channel, expected);
    }

    #[test]
    fn orientations_turn_and_mirror_pixels() {
        check(1, 3, &[1, 2, 3, 4, 5, 6]);
        check(2, 3, &[3, 2, 1, 6, 5, 4]);
        check(3, 3, &[6, 5, 4, 3, 2, 1]);
        check(4, 3, &[4, 5, 6, 1, 2, 3]);
        check(5, 2, &[1, 4, 2, 5, 3, 6]);
        check(6, 2, &[4, 1, 5, 2, 6, 3]);
        check(7, 2, &[6, 3, 5, 2, 4, 1]);
        check(8, 2, &[3, 6, 2, 5, 1, 4]);
        check(9, 3, &[1, 2, 3, 4, 5, 6]);
    }

    fn exif(big_endian: bool, tag: u16, kind: u16, value: u16) -> Vec<u8> {
        let short = |n: u16| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let long = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let mut bytes = if big_endian { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
        bytes.extend(long(8));
        bytes.extend(short(2));
        for (tag, kind, value) in [(0x010f, 3, 7), (tag, kind, value)] {
            bytes.extend([short(tag), short(kind)].concat());
            bytes.extend(long(1));
            bytes.extend([short(value), [0; 2]].concat());
        }
        bytes
    }

    #[test]
    fn exif_blocks_of_both_byte_orders_are_read() {
        for big_endian in [false, true] {
            let block = exif(big_endian, ORIENTATION_TAG, 3, 6);
            assert_eq!(Orientation::from_exif(&block), Some(Orientation::Rotate90));
            let with_prefix = [b"Exif\0\0".as_slice(), &block].concat();
            assert_eq!(Orientation::from_exif(&with_prefix), Some(Orientation::Rotate90));
        }
    }

    #[test]
    fn malformed_exif_blocks_have_no_orientation() {
        let whole = exif(false, ORIENTATION_TAG, 3, 6);
        // The tag is the last entry, and the value's second half is not needed.
        for length in 0..whole.len() - 2 {
            assert_eq!(Orientation::from_exif(&whole[..length]), None, "{length}");
        }
        assert_eq!(Orientation::from_exif(&exif(false, ORIENTATION_TAG, 4, 6)), None);
        assert_eq!(Orientation::from_exif(&exif(false, 0x0113, 3, 6)), None);
        let mut far = whole;
        far[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Orientation::from_exif(&far), None);
    }

    #[test]
    fn xmp_packets_hold_orientation_as_attribute_or_element() {
        let attribute = br#"<x tiff:Orientation="8"/>"#;
        assert_eq!(Orientation::from_xmp(attribute), Some(Orientation::Rotate270));
        let element = b"<tiff:Orientation>3</tiff:Orientation>";
        assert_eq!(Orientation::from_xmp(element), Some(Orientation::Rotate180));
        assert_eq!(Orientation::from_xmp(b"tiff:Orientation"), None);
        assert_eq!(Orientation::from_xmp(b"tiff:Orientation=\"x\""), None);
    }
}
