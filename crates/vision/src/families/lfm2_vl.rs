//! LFM2-VL: a small image is one view; a large one is cut into tiles, with a thumbnail.

use super::smart_resize::{round_to, smart_resize};
use crate::plan::{Layout, Piece, Plan, View};

pub(crate) const IMAGE_TOKEN: &str = "<image>";
const START_TOKEN: &str = "<|image_start|>";
const END_TOKEN: &str = "<|image_end|>";
const THUMBNAIL_TOKEN: &str = "<|img_thumbnail|>";

/// Constants of a checkpoint, with the names of its configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lfm2Vl {
    pub(crate) encoder_patch_size: u32,
    pub(crate) downsample_factor: u32,
    pub(crate) min_image_tokens: u32,
    pub(crate) max_image_tokens: u32,
    pub(crate) tile_size: u32,
    pub(crate) min_tiles: u32,
    pub(crate) max_tiles: u32,
    pub(crate) use_thumbnail: bool,
    pub(crate) max_pixels_tolerance: f64,
}

impl Lfm2Vl {
    /// Pixels of width and height per token.
    fn factor(&self) -> u32 {
        self.encoder_patch_size * self.downsample_factor
    }

    fn pixels(&self, tokens: u32) -> u64 {
        u64::from(tokens) * u64::from(self.factor()).pow(2)
    }

    /// The size of an image as one view.
    fn single_size(&self, width: u32, height: u32) -> (u32, u32) {
        let factor = self.factor();
        let (min, max) = (self.pixels(self.min_image_tokens), self.pixels(self.max_image_tokens));
        smart_resize((width, height), factor, (factor, factor), min, max)
    }

    fn is_tiled(&self, width: u32, height: u32) -> bool {
        let side = |length| u64::from(round_to(length, self.factor()).max(self.encoder_patch_size));
        let limit = self.pixels(self.max_image_tokens) as f64 * self.max_pixels_tolerance;
        self.max_tiles > 1 && (side(width) * side(height)) as f64 > limit
    }

    /// Columns and rows of tiles: the ratio nearest to the image's. Of two equal ratios, the one
    /// with more tiles is taken if the image has more than half of its pixels.
    fn tile_grid(&self, width: u32, height: u32) -> (u32, u32) {
        let aspect_ratio = f64::from(width) / f64::from(height);
        let area = f64::from(width) * f64::from(height);
        let mut nearest = (f64::INFINITY, (1, 1));
        for (columns, rows) in grids(self.min_tiles, self.max_tiles) {
            let difference = (aspect_ratio - f64::from(columns) / f64::from(rows)).abs();
            let tile_area = f64::from(self.tile_size).powi(2) * f64::from(columns * rows);
            if difference < nearest.0 || (difference == nearest.0 && area > 0.5 * tile_area) {
                nearest = (difference, (columns, rows));
            }
        }
        nearest.1
    }

    pub(crate) fn plan(&self, width: u32, height: u32) -> Plan {
        let mut plan = Plan { views: vec![], expansion: vec![Piece::Special(START_TOKEN.into())] };
        let single = self.single_size(width, height);
        let tiled = self.is_tiled(width, height);
        let grid = if tiled { self.tile_grid(width, height) } else { (1, 1) };
        if tiled {
            self.add_tiles(grid, &mut plan);
        }
        // A single tile has neither a position nor a thumbnail.
        let has_thumbnail = self.use_thumbnail && grid != (1, 1);
        if has_thumbnail {
            plan.expansion.push(Piece::Special(THUMBNAIL_TOKEN.into()));
        }
        if has_thumbnail || !tiled {
            plan.views.push(View::whole(single.0, single.1));
            plan.expansion.push(Piece::Image(self.tokens(single)));
        }
        plan.expansion.push(Piece::Special(END_TOKEN.into()));
        plan
    }

    fn add_tiles(&self, (columns, rows): (u32, u32), plan: &mut Plan) {
        plan.views.push(View {
            width: columns * self.tile_size,
            height: rows * self.tile_size,
            tile: Some(self.tile_size),
        });
        for row in 1..=rows {
            for column in 1..=columns {
                if (columns, rows) != (1, 1) {
                    plan.expansion.push(Piece::Special(format!("<|img_row_{row}_col_{column}|>")));
                }
                let tokens = self.tokens((self.tile_size, self.tile_size));
                plan.expansion.push(Piece::Image(tokens));
            }
        }
    }

    fn tokens(&self, (width, height): (u32, u32)) -> usize {
        let side = |length: u32| (length / self.encoder_patch_size).div_ceil(self.downsample_factor);
        (side(width) * side(height)) as usize
    }

    /// Fewer tiles, or one view. That has `max_image_tokens` even if it is long and narrow.
    pub(crate) fn limited(&self, max_tokens: u32) -> Option<Lfm2Vl> {
        let per_tile = self.tokens((self.tile_size, self.tile_size)) as u32;
        let thumbnail = if self.use_thumbnail { self.max_image_tokens } else { 0 };
        let max_tiles = self.max_tiles.min(max_tokens.saturating_sub(thumbnail) / per_tile);
        let (min_tiles, max_tiles) = match max_tiles >= self.min_tiles.max(2) {
            true => (self.min_tiles, max_tiles),
            false => (1, 1),
        };
        let limited = Lfm2Vl { min_tiles, max_tiles, ..*self };
        (max_tokens >= self.max_image_tokens).then_some(limited)
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout::Raster { patch: self.encoder_patch_size }
    }
}

/// All grids with this number of tiles, in ascending order of tiles.
fn grids(min_tiles: u32, max_tiles: u32) -> Vec<(u32, u32)> {
    let all = (1..=max_tiles).flat_map(|columns| (1..=max_tiles).map(move |rows| (columns, rows)));
    let mut grids: Vec<_> =
        all.filter(|(columns, rows)| (min_tiles..=max_tiles).contains(&(columns * rows))).collect();
    grids.sort_by_key(|(columns, rows)| columns * rows);
    grids
}
