//! Gemma 3: every image becomes one square and a fixed number of tokens.

use crate::plan::{Piece, Plan, View};

pub(crate) const START_TOKEN: &str = "<start_of_image>";
pub(crate) const IMAGE_TOKEN: &str = "<image_soft_token>";
const END_TOKEN: &str = "<end_of_image>";

/// Constants of a checkpoint, with the names of its configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gemma3 {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) image_seq_length: u32,
}

impl Gemma3 {
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            views: vec![View::whole(self.width, self.height)],
            expansion: vec![
                Piece::Text("\n\n"),
                Piece::Special(START_TOKEN.into()),
                Piece::Image(self.image_seq_length as usize),
                Piece::Special(END_TOKEN.into()),
                Piece::Text("\n\n"),
            ],
        }
    }

    pub(crate) fn limited(&self, max_tokens: u32) -> Option<Gemma3> {
        (self.image_seq_length <= max_tokens).then(|| self.clone())
    }
}
