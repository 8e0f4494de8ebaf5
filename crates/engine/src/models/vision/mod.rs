//! Vision towers: one file each. A tower computes the features of one image at a time, so that they
//! depend on that image alone, bit for bit.

mod gemma4;
mod gemma4_unified;
mod image_positions;
mod pixtral;
mod planes;
mod qwen3_vl;
mod siglip;
mod siglip2;

use mlx::Array;
use serde_json::Value;

pub(crate) use self::image_positions::ImagePositions;
pub(super) use self::{
    gemma4::load as load_gemma4, gemma4_unified::load as load_gemma4_unified, pixtral::load as load_pixtral,
    qwen3_vl::load as load_qwen3_vl, siglip::load as load_siglip, siglip2::load as load_siglip2,
};
use crate::{
    api::{Image, Vision},
    error::Result,
    models::config::ensure_supported,
    weights::Weights,
};

/// A loaded vision tower with the projection to the text model's hidden size.
pub(crate) trait Tower {
    /// Features `[tokens, hidden_size]` of an image that passes [`check`](Tower::check); wider by
    /// hidden_size for each of [`num_deep`](Tower::num_deep).
    fn forward(&self, image: &Image) -> Array;

    /// # Errors
    /// Its tensors do not fit the tower, or its prompt positions do not fit them.
    fn check(&self, image: &Image) -> std::result::Result<(), String>;

    /// Rows and columns of an image's tokens, in models whose positions have several axes.
    fn grid(&self, image: &Image) -> Option<[usize; 2]>;

    /// Number of the text model's first layers after which further features are added to the
    /// residual stream (Meng et al., "DeepStack", 2024).
    fn num_deep(&self) -> usize {
        0
    }

    /// Bytes of activations for each token of an image, while the tower runs.
    fn token_bytes(&self) -> usize;
}

/// Canonical names of a tower's tensors begin with this.
const PREFIX: &str = "visual";

/// The canonical name `visual.*` of a tower's tensor, which the hub calls `model.visual.*` or
/// `vision_tower.*` and MLX `vision_tower.*` or `vision_tower.vision_model.*`; without an encoder
/// both call it `vision_embedder.*`. That of a projector's is `visual.projector.*`. `None` for
/// other tensors.
pub(super) fn canonical(name: &str) -> Option<String> {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    let projectors = ["multi_modal_projector.", "embed_vision."];
    if let Some(rest) = projectors.iter().find_map(|prefix| bare.strip_prefix(prefix)) {
        return Some(format!("{PREFIX}.projector.{rest}"));
    }
    let towers = ["visual.", "vision_tower.", "vision_embedder."];
    let rest = towers.iter().find_map(|prefix| bare.strip_prefix(prefix))?;
    Some(format!("{PREFIX}.{}", rest.strip_prefix("vision_model.").unwrap_or(rest)))
}

/// Checks that a projector takes what the tower's last layer makes; `text` is the text part of
/// config.json.
fn check_feature_layer(text: &Value) -> Result<()> {
    let layer = text.get("vision_feature_layer").and_then(Value::as_i64).unwrap_or(-1);
    ensure_supported(layer == -1, format!("vision_feature_layer is {layer}; only -1 is supported"))
}

/// # Errors
/// A value, with its name before and the largest allowed one after it, is below 1 or too large.
fn check_sizes<const N: usize>(sizes: [(&str, i32, i32); N]) -> Result<()> {
    sizes.into_iter().try_for_each(|(key, value, most)| {
        let message = format!("{key} is {value}; it must be between 1 and {most}");
        ensure_supported((1..=most).contains(&value), message)
    })
}

/// # Errors
/// An image's positions are not as many as its features.
fn check_tokens(image: &Image, tokens: usize) -> std::result::Result<(), String> {
    match image.num_tokens() {
        positions if positions == tokens => Ok(()),
        positions => Err(format!("it has {tokens} features for {positions} prompt positions")),
    }
}

/// Image support of a model with this config.json's text part, with or without a `tower`; `known`
/// if the family's towers are supported.
pub(crate) fn support(config: &Value, tower: Option<&dyn Tower>, known: bool) -> Vision {
    let id = ["image_token_id", "image_token_index"].iter().find_map(|key| config.get(key)?.as_u64());
    match (tower, id) {
        (Some(_), Some(id)) => Vision::Tower { image_token_id: id as u32 },
        _ if known && config.get("vision_config").is_some_and(Value::is_object) => Vision::Dropped,
        _ => Vision::None,
    }
}

/// The tower that `load` reads from `visual.*`, given config.json's `vision_config`; `None` in
/// conversions without one.
///
/// # Errors
/// Those of `load`.
pub(super) fn load_tower(
    config: &Value,
    w: &Weights,
    load: impl FnOnce(&Value, &Weights) -> Result<Box<dyn Tower>>,
) -> Result<Option<Box<dyn Tower>>> {
    let w = w.sub(PREFIX);
    match config.get("vision_config") {
        // Some conversions keep the projector alone.
        Some(vision) if w.has_other_than("projector") => load(vision, &w).map(Some),
        _ => {
            w.skip_all();
            Ok(None)
        }
    }
}
