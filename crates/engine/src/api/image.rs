//! Images of a request, as preprocessing hands them to the engine: numbers and prompt positions,
//! never files or pixels of a format.

use std::{fmt, ops::Range, sync::Arc};

/// An image of a request. Features that the model's vision tower computes from `tensors` replace
/// the embeddings of the prompt tokens in `positions`.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Runs of prompt positions, ascending and without overlap, that hold the model's image token:
    /// the first feature replaces the embedding of the first position, and so on. One run, or
    /// several where break tokens or labels of tiles stand between. Together they are as many as
    /// the tower has features.
    ///
    /// From the first run's start to the last one's end an image is whole: no step ends and no
    /// stored prefix is resumed inside it.
    pub positions: Vec<Range<usize>>,
    /// SHA-256 of everything that `tensors` were computed from, the processor's constants among it:
    /// equal digests mean equal tensors. Features and stored prefixes are found by it.
    pub digest: [u8; 32],
    /// Input of the tower: one tensor, or one for each tile and the thumbnail. Shared by the
    /// choices of a request.
    pub tensors: Arc<[ImageTensor]>,
}

/// One tensor of a tower's input.
#[derive(Clone, PartialEq)]
pub struct ImageTensor {
    /// Rows of patches; where the model's processor cuts no patches, of pixels.
    pub rows: usize,
    /// Columns of patches, or of pixels.
    pub columns: usize,
    /// `rows * columns` patches, or planes `[3, rows, columns]`, in the order and normalisation of
    /// the model's image processor.
    pub values: Vec<f32>,
}

impl Image {
    /// Positions from the first replaced token to the last one, with the tokens between.
    pub fn span(&self) -> Range<usize> {
        let start = self.positions.first().map_or(0, |run| run.start);
        start..self.positions.last().map_or(start, |run| run.end)
    }

    /// Number of tokens that its features replace.
    pub fn num_tokens(&self) -> usize {
        self.positions.iter().map(ExactSizeIterator::len).sum()
    }

    /// Bytes of its tensors.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| size_of_val(&tensor.values[..])).sum()
    }
}

impl fmt::Debug for ImageTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageTensor({} x {}, {} values)", self.rows, self.columns, self.values.len())
    }
}

/// Whether a loaded model takes images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vision {
    /// It has a vision tower.
    Tower {
        /// The token whose embedding features replace: what stands at [`Image::positions`].
        image_token_id: u32,
    },
    /// The model has one, and this conversion of it does not.
    Dropped,
    /// It is a text model, or its tower is not supported.
    None,
}

impl Vision {
    /// Whether it takes images.
    pub fn has_tower(self) -> bool {
        matches!(self, Vision::Tower { .. })
    }
}
