//! The image geometry of each family: sizes, patches, token counts and how a placeholder expands.

pub(crate) mod gemma3;
pub(crate) mod gemma4;
pub(crate) mod lfm2_vl;
pub(crate) mod pixtral;
pub(crate) mod qwen_vl;
mod smart_resize;

use crate::{
    Result,
    plan::{Layout, Plan},
};

/// One family, with the constants of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Family {
    QwenVl(qwen_vl::QwenVl),
    Gemma3(gemma3::Gemma3),
    Gemma4(gemma4::Gemma4),
    Pixtral(pixtral::Pixtral),
    Lfm2Vl(lfm2_vl::Lfm2Vl),
}

impl Family {
    /// Sizes, patches and tokens for an upright image of this size.
    pub(crate) fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        match self {
            Family::QwenVl(family) => family.plan(width, height),
            Family::Gemma3(family) => Ok(family.plan()),
            Family::Gemma4(family) => family.plan(width, height),
            Family::Pixtral(family) => Ok(family.plan(width, height)),
            Family::Lfm2Vl(family) => Ok(family.plan(width, height)),
        }
    }

    /// The same family with at most `max_tokens` embeddings per image; `None` if it cannot have so
    /// few.
    pub(crate) fn limited(&self, max_tokens: u32) -> Option<Family> {
        match self {
            Family::QwenVl(family) => family.limited(max_tokens).map(Family::QwenVl),
            Family::Gemma3(family) => family.limited(max_tokens).map(Family::Gemma3),
            Family::Gemma4(family) => family.limited(max_tokens).map(Family::Gemma4),
            Family::Pixtral(family) => family.limited(max_tokens).map(Family::Pixtral),
            Family::Lfm2Vl(family) => family.limited(max_tokens).map(Family::Lfm2Vl),
        }
    }

    /// The special token that chat templates print for an image.
    pub(crate) fn placeholder(&self) -> &str {
        match self {
            Family::QwenVl(_) => qwen_vl::IMAGE_TOKEN,
            Family::Gemma3(_) => gemma3::START_TOKEN,
            Family::Gemma4(_) => gemma4::IMAGE_TOKEN,
            Family::Pixtral(family) => &family.image_token,
            Family::Lfm2Vl(_) => lfm2_vl::IMAGE_TOKEN,
        }
    }

    /// The special token in whose place an embedding of the image stands.
    pub(crate) fn image_token(&self) -> &str {
        match self {
            Family::Gemma3(_) => gemma3::IMAGE_TOKEN,
            _ => self.placeholder(),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        match self {
            Family::QwenVl(family) => family.layout(),
            Family::Gemma3(_) | Family::Pixtral(_) => Layout::Planes,
            Family::Gemma4(family) => family.layout(),
            Family::Lfm2Vl(family) => family.layout(),
        }
    }
}
