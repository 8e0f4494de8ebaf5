//! Gemma 4, with a vision encoder or without one: as many patches as a budget allows.

use crate::{
    Error, Result,
    plan::{Layout, Piece, Plan, View},
};

pub(crate) const IMAGE_TOKEN: &str = "<|image|>";
const START_TOKEN: &str = "<|image>";
const END_TOKEN: &str = "<image|>";
/// Token budgets that the models were trained with.
pub(crate) const SOFT_TOKENS: [u32; 5] = [70, 140, 280, 560, 1120];

/// Constants of a checkpoint, with the names of its configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gemma4 {
    pub(crate) patch_size: u32,
    pub(crate) pooling_kernel_size: u32,
    pub(crate) max_soft_tokens: u32,
    /// Without an encoder, the patches of one token are merged into one here.
    pub(crate) has_encoder: bool,
}

impl Gemma4 {
    /// The largest size that keeps the aspect ratio, by rounding down to whole tokens.
    fn target_size(&self, width: u32, height: u32) -> Result<(u32, u32)> {
        let side = self.patch_size * self.pooling_kernel_size;
        let max_patches = u64::from(self.max_soft_tokens) * u64::from(self.pooling_kernel_size).pow(2);
        let target_pixels = max_patches * u64::from(self.patch_size).pow(2);
        let pixels = u64::from(width) * u64::from(height);
        let factor = (target_pixels as f64 / pixels as f64).sqrt();
        let tokens = |length: u32| (factor * f64::from(length) / f64::from(side)).floor() as u32;
        let (columns, rows) = match (tokens(width), tokens(height)) {
            (0, 0) => {
                let rule = "the model has too few tokens for it; send another size".into();
                return Err(Error::Size { width, height, rule });
            }
            (columns, 0) if columns > 0 => ((width / height).min(self.max_soft_tokens), 1),
            (0, rows) if rows > 0 => (1, (height / width).min(self.max_soft_tokens)),
            size => size,
        };
        Ok((columns * side, rows * side))
    }

    pub(crate) fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (width, height) = self.target_size(width, height)?;
        let side = self.patch_size * self.pooling_kernel_size;
        let tokens = (width / side) * (height / side);
        Ok(Plan {
            views: vec![View::whole(width, height)],
            expansion: vec![
                Piece::Special(START_TOKEN.into()),
                Piece::Image(tokens as usize),
                Piece::Special(END_TOKEN.into()),
            ],
        })
    }

    pub(crate) fn limited(&self, max_tokens: u32) -> Option<Gemma4> {
        let largest = max_tokens.min(self.max_soft_tokens);
        let max_soft_tokens = *SOFT_TOKENS.iter().rev().find(|tokens| **tokens <= largest)?;
        Some(Gemma4 { max_soft_tokens, ..self.clone() })
    }

    pub(crate) fn layout(&self) -> Layout {
        let merged = if self.has_encoder { 1 } else { self.pooling_kernel_size };
        Layout::Raster { patch: self.patch_size * merged }
    }
}
