//! How an image of a known size is preprocessed, and what stands for it in the prompt. Made from
//! the size alone: tokens are counted and memory is checked before any pixel is decoded.

/// A part of what an image's placeholder expands to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Plain text, to be tokenised together with the text beside it.
    Text(&'static str),
    /// A special token, by its text.
    Special(String),
    /// This number of image tokens, in whose place embeddings stand in order.
    Image(usize),
}

/// A resized copy of the whole image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The side of the square tiles that it is cut into; each becomes a tensor.
    pub tile: Option<u32>,
}

impl View {
    pub(crate) fn whole(width: u32, height: u32) -> View {
        View { width, height, tile: None }
    }

    /// Bytes of its pixels.
    pub(crate) fn pixel_bytes(&self) -> u64 {
        3 * u64::from(self.width) * u64::from(self.height)
    }
}

/// Sizes and tokens of one image for one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Resized copies, in the order of their tensors.
    pub views: Vec<View>,
    /// What the image's placeholder is replaced with.
    pub expansion: Vec<Piece>,
}

impl Plan {
    /// The number of embeddings that the tower returns for the image.
    pub fn num_image_tokens(&self) -> usize {
        self.expansion.iter().map(|piece| if let Piece::Image(count) = piece { *count } else { 0 }).sum()
    }
}

/// The order of values in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `[3, height, width]`.
    Planes,
    /// `[rows * columns, patch * patch * 3]`, channels last.
    Raster {
        /// Side of a patch in pixels.
        patch: u32,
    },
    /// `[rows * columns, 3 * frames * patch * patch]`, `merge` x `merge` neighbours together.
    MergeOrder {
        /// Side of a patch in pixels.
        patch: u32,
        /// Side of a group in patches.
        merge: u32,
        /// How often the frame is repeated.
        frames: u32,
    },
}

impl Layout {
    /// The side of a patch; planes are not cut.
    pub(crate) fn patch(self) -> u32 {
        match self {
            Layout::Planes => 1,
            Layout::Raster { patch } | Layout::MergeOrder { patch, .. } => patch,
        }
    }

    /// Floats per byte of a pixel.
    pub(crate) fn repeats(self) -> u32 {
        match self {
            Layout::MergeOrder { frames, .. } => frames,
            Layout::Planes | Layout::Raster { .. } => 1,
        }
    }
}
