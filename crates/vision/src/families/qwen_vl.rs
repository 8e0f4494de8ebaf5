//! Qwen3-VL, Qwen3.5 and Qwen3.6: any aspect ratio up to 200, patches in merge order.

use super::smart_resize::smart_resize;
use crate::{
    Error, Result,
    plan::{Layout, Piece, Plan, View},
};

pub(crate) const IMAGE_TOKEN: &str = "<|image_pad|>";
const MAX_ASPECT_RATIO: f64 = 200.0;

/// Constants of a checkpoint, with the names of its configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QwenVl {
    pub(crate) patch_size: u32,
    pub(crate) merge_size: u32,
    pub(crate) temporal_patch_size: u32,
    pub(crate) min_pixels: u64,
    pub(crate) max_pixels: u64,
}

impl QwenVl {
    fn factor(&self) -> u32 {
        self.patch_size * self.merge_size
    }

    pub(crate) fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (longer, shorter) = (width.max(height), width.min(height));
        if f64::from(longer) / f64::from(shorter) > MAX_ASPECT_RATIO {
            let rule = "one side must be at most 200 times the other; crop or pad it".into();
            return Err(Error::Size { width, height, rule });
        }
        let factor = self.factor();
        let (width, height) = smart_resize((width, height), factor, (0, 0), self.min_pixels, self.max_pixels);
        let tokens = (width / factor) * (height / factor);
        Ok(Plan { views: vec![View::whole(width, height)], expansion: vec![Piece::Image(tokens as usize)] })
    }

    pub(crate) fn limited(&self, max_tokens: u32) -> Option<QwenVl> {
        let pixels = u64::from(max_tokens) * u64::from(self.factor()).pow(2);
        let max_pixels = self.max_pixels.min(pixels);
        let min_pixels = self.min_pixels.min(max_pixels);
        // A side below one token is rounded up to one: longer images than this many tokens are wide
        // would have more.
        (max_tokens >= MAX_ASPECT_RATIO as u32).then_some(QwenVl { min_pixels, max_pixels, ..*self })
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout::MergeOrder {
            patch: self.patch_size,
            merge: self.merge_size,
            frames: self.temporal_patch_size,
        }
    }
}
