//! Pixtral, Mistral 3 and Ministral 3: the longest side is limited, rows of tokens end in a break.

use crate::plan::{Piece, Plan, View};

/// Constants of a checkpoint, with the names of its configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pixtral {
    /// Pixels of width and height per token: `patch_size * spatial_merge_size`.
    pub(crate) token_size: u32,
    pub(crate) max_width: u32,
    pub(crate) max_height: u32,
    pub(crate) image_token: String,
    pub(crate) image_break_token: String,
    pub(crate) image_end_token: String,
}

impl Pixtral {
    /// Columns and rows of tokens.
    fn grid(&self, width: u32, height: u32) -> (u32, u32) {
        let (w, h) = (f64::from(width), f64::from(height));
        let ratio = (h / f64::from(self.max_height)).max(w / f64::from(self.max_width));
        let (width, height) = match ratio > 1.0 {
            // The short side of a long image becomes zero, and then one token.
            true => ((w / ratio).floor() as u32, (h / ratio).floor() as u32),
            false => (width, height),
        };
        (width.div_ceil(self.token_size).max(1), height.div_ceil(self.token_size).max(1))
    }

    pub(crate) fn plan(&self, width: u32, height: u32) -> Plan {
        let (columns, rows) = self.grid(width, height);
        let mut expansion = vec![];
        for row in 1..=rows {
            let end = if row == rows { &self.image_end_token } else { &self.image_break_token };
            expansion.extend([Piece::Image(columns as usize), Piece::Special(end.clone())]);
        }
        Plan { views: vec![View::whole(columns * self.token_size, rows * self.token_size)], expansion }
    }

    pub(crate) fn limited(&self, max_tokens: u32) -> Option<Pixtral> {
        let side = max_tokens.isqrt() * self.token_size;
        let (max_width, max_height) = (self.max_width.min(side), self.max_height.min(side));
        (max_tokens > 0).then(|| Pixtral { max_width, max_height, ..self.clone() })
    }
}
