//! The preprocessor's configuration of a checkpoint, from `preprocessor_config.json` or
//! `processor_config.json`.

use serde::Deserialize;

use crate::{
    Error, Filter, Result,
    families::{
        Family, gemma3::Gemma3, gemma4, gemma4::Gemma4, lfm2_vl::Lfm2Vl, pixtral::Pixtral, qwen_vl::QwenVl,
    },
    normalize::Normalization,
};

const PREPROCESSOR: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";
const HALF: [f64; 3] = [0.5; 3];
const CLIP_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
const CLIP_STD: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];

/// The files of a checkpoint that describe its preprocessing; at least one must exist.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConfigFiles<'a> {
    /// The text of `preprocessor_config.json`.
    pub preprocessor: Option<&'a str>,
    /// The text of `processor_config.json`.
    pub processor: Option<&'a str>,
}

/// A number, or one for each direction.
#[derive(Deserialize, Clone, Copy)]
#[serde(untagged)]
enum PatchSize {
    Both(u32),
    Each { height: u32, width: u32 },
}

#[derive(Deserialize, Default, Clone)]
struct Size {
    shortest_edge: Option<u64>,
    longest_edge: Option<u64>,
    min_pixels: Option<u64>,
    max_pixels: Option<u64>,
    height: Option<u32>,
    width: Option<u32>,
}

/// An image processor, flat in `preprocessor_config.json` and nested in `processor_config.json`.
#[derive(Deserialize)]
struct ImageProcessor {
    image_processor_type: Option<String>,
    do_resize: Option<bool>,
    do_rescale: Option<bool>,
    do_normalize: Option<bool>,
    do_center_crop: Option<bool>,
    do_pan_and_scan: Option<bool>,
    do_image_splitting: Option<bool>,
    do_convert_rgb: Option<bool>,
    resample: Option<u8>,
    rescale_factor: Option<f64>,
    image_mean: Option<[f64; 3]>,
    image_std: Option<[f64; 3]>,
    size: Option<Size>,
    min_pixels: Option<u64>,
    max_pixels: Option<u64>,
    patch_size: Option<PatchSize>,
    temporal_patch_size: Option<u32>,
    merge_size: Option<u32>,
    max_soft_tokens: Option<u32>,
    pooling_kernel_size: Option<u32>,
    image_seq_length: Option<u32>,
    downsample_factor: Option<u32>,
    min_tiles: Option<u32>,
    max_tiles: Option<u32>,
    use_thumbnail: Option<bool>,
    min_image_tokens: Option<u32>,
    max_image_tokens: Option<u32>,
    encoder_patch_size: Option<u32>,
    tile_size: Option<u32>,
    max_pixels_tolerance: Option<f64>,
}

/// What `processor_config.json` adds.
#[derive(Deserialize, Default)]
struct ProcessorFile {
    image_processor: Option<ImageProcessor>,
    image_seq_length: Option<u32>,
    patch_size: Option<PatchSize>,
    spatial_merge_size: Option<u32>,
    image_token: Option<String>,
    image_break_token: Option<String>,
    image_end_token: Option<String>,
    use_image_special_tokens: Option<bool>,
}

/// Everything that preprocessing needs to know of a checkpoint.
pub(crate) struct Config {
    pub(crate) family: Family,
    pub(crate) filter: Filter,
    pub(crate) normalization: Normalization,
}

/// The constants that a class of transformers has where the files are silent.
struct Defaults {
    resample: u8,
    mean: [f64; 3],
    std: [f64; 3],
    normalize: bool,
}

impl Config {
    /// Reads both files; an image processor nested in `processor_config.json` has precedence, as in
    /// transformers.
    pub(crate) fn parse(files: ConfigFiles) -> Result<Config> {
        let processor = match files.processor {
            Some(text) => parse::<ProcessorFile>(PROCESSOR, text)?,
            None => ProcessorFile::default(),
        };
        match (&processor.image_processor, files.preprocessor) {
            (Some(image_processor), _) => read(PROCESSOR, image_processor, &processor),
            (None, Some(text)) => read(PREPROCESSOR, &parse(PREPROCESSOR, text)?, &processor),
            (None, None) => Err(refuse(
                PREPROCESSOR,
                "neither it nor image_processor in processor_config.json exists; \
                 use a conversion that keeps the vision part",
            )),
        }
    }
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| refuse(file, &error.to_string()))
}

fn refuse(file: &'static str, reason: &str) -> Error {
    Error::Config { file, reason: reason.into() }
}

fn read(file: &'static str, image: &ImageProcessor, processor: &ProcessorFile) -> Result<Config> {
    check_steps(file, image)?;
    let checked = Checked { file, image };
    let (family, defaults) = checked.family(processor)?;
    let filter = match image.resample.unwrap_or(defaults.resample) {
        2 => Filter::Bilinear,
        3 => Filter::Bicubic,
        other => return Err(refuse(file, &format!("resample {other} is not supported: use 2 or 3"))),
    };
    let factor = image.rescale_factor.unwrap_or(1.0 / 255.0);
    let std = image.image_std.unwrap_or(defaults.std);
    if !(factor.is_normal() && factor > 0.0) || std.iter().any(|std| !std.is_normal()) {
        return Err(refuse(file, "rescale_factor and image_std must not be zero"));
    }
    let normalization = match image.do_normalize.unwrap_or(defaults.normalize) {
        true => Normalization::mean_and_std(image.image_mean.unwrap_or(defaults.mean), std, factor),
        false => Normalization::rescale(factor),
    };
    Ok(Config { family, filter, normalization })
}

/// Refuses steps that would change pixels in ways that are not implemented.
fn check_steps(file: &'static str, image: &ImageProcessor) -> Result<()> {
    let required = [
        ("do_resize", image.do_resize),
        ("do_rescale", image.do_rescale),
        ("do_convert_rgb", image.do_convert_rgb),
    ];
    let refused = [("do_center_crop", image.do_center_crop), ("do_pan_and_scan", image.do_pan_and_scan)];
    if let Some((name, _)) = required.iter().find(|(_, value)| *value == Some(false)) {
        return Err(refuse(file, &format!("{name} false is not supported: remove it")));
    }
    if let Some((name, _)) = refused.iter().find(|(_, value)| *value == Some(true)) {
        return Err(refuse(file, &format!("{name} true is not supported: remove it")));
    }
    Ok(())
}

/// An image processor whose numbers are checked as they are read.
struct Checked<'a> {
    file: &'static str,
    image: &'a ImageProcessor,
}

impl Checked<'_> {
    fn family(&self, processor: &ProcessorFile) -> Result<(Family, Defaults)> {
        let kind = self.image.image_processor_type.as_deref().unwrap_or_default();
        let half = Defaults { resample: 3, mean: HALF, std: HALF, normalize: true };
        let clip = Defaults { mean: CLIP_MEAN, std: CLIP_STD, ..half };
        Ok(match kind.strip_suffix("Fast").unwrap_or(kind) {
            "Qwen2VLImageProcessor" | "Qwen3VLImageProcessor" => (Family::QwenVl(self.qwen_vl()?), clip),
            "Gemma3ImageProcessor" => {
                (Family::Gemma3(self.gemma3(processor)?), Defaults { resample: 2, ..half })
            }
            "Gemma4ImageProcessor" => {
                (Family::Gemma4(self.gemma4(true)?), Defaults { normalize: false, ..half })
            }
            "Gemma4UnifiedImageProcessor" => {
                (Family::Gemma4(self.gemma4(false)?), Defaults { normalize: false, ..half })
            }
            "PixtralImageProcessor" => (Family::Pixtral(self.pixtral(processor)?), clip),
            "Lfm2VlImageProcessor" => {
                (Family::Lfm2Vl(self.lfm2_vl(processor)?), Defaults { resample: 2, ..half })
            }
            other => {
                let reason = format!("image_processor_type {other:?} is not supported");
                return Err(refuse(self.file, &reason));
            }
        })
    }

    /// A number in a range, or its default.
    fn number(&self, name: &str, value: Option<u32>, default: u32, max: u32) -> Result<u32> {
        match value.unwrap_or(default) {
            value if (1..=max).contains(&value) => Ok(value),
            value => Err(refuse(self.file, &format!("{name} is {value}, not between 1 and {max}"))),
        }
    }

    fn patch_size(&self, value: Option<PatchSize>, default: u32) -> Result<u32> {
        let value = match value {
            None => None,
            Some(PatchSize::Both(size)) => Some(size),
            Some(PatchSize::Each { height, width }) if height == width => Some(height),
            Some(PatchSize::Each { .. }) => return Err(refuse(self.file, "patch_size is not square")),
        };
        self.number("patch_size", value, default, 256)
    }

    fn qwen_vl(&self) -> Result<QwenVl> {
        let size = self.image.size.clone().unwrap_or_default();
        let min = self.image.min_pixels.or(size.shortest_edge).or(size.min_pixels);
        let max = self.image.max_pixels.or(size.longest_edge).or(size.max_pixels);
        let (min_pixels, max_pixels) = (min.unwrap_or(56 * 56), max.unwrap_or(28 * 28 * 1280));
        let patch_size = self.patch_size(self.image.patch_size, 14)?;
        let merge_size = self.number("merge_size", self.image.merge_size, 2, 16)?;
        let one_token = u64::from(patch_size * merge_size).pow(2);
        if min_pixels > max_pixels || max_pixels < one_token || max_pixels > 1 << 28 {
            let reason = format!("size allows {min_pixels} to {max_pixels} pixels, which is no range");
            return Err(refuse(self.file, &reason));
        }
        let temporal_patch_size = self.number("temporal_patch_size", self.image.temporal_patch_size, 2, 8)?;
        Ok(QwenVl { patch_size, merge_size, temporal_patch_size, min_pixels, max_pixels })
    }

    fn gemma3(&self, processor: &ProcessorFile) -> Result<Gemma3> {
        let size = self.image.size.clone().unwrap_or_default();
        let length = processor.image_seq_length.or(self.image.image_seq_length);
        Ok(Gemma3 {
            width: self.number("size.width", size.width, 224, 8192)?,
            height: self.number("size.height", size.height, 224, 8192)?,
            image_seq_length: self.number("image_seq_length", length, 256, 1 << 16)?,
        })
    }

    fn gemma4(&self, has_encoder: bool) -> Result<Gemma4> {
        let max_soft_tokens = self.image.max_soft_tokens.unwrap_or(280);
        if !gemma4::SOFT_TOKENS.contains(&max_soft_tokens) {
            let reason =
                format!("max_soft_tokens is {max_soft_tokens}, not one of {:?}", gemma4::SOFT_TOKENS);
            return Err(refuse(self.file, &reason));
        }
        let pooling = self.image.pooling_kernel_size;
        Ok(Gemma4 {
            patch_size: self.patch_size(self.image.patch_size, 16)?,
            pooling_kernel_size: self.number("pooling_kernel_size", pooling, 3, 16)?,
            max_soft_tokens,
            has_encoder,
        })
    }

    fn pixtral(&self, processor: &ProcessorFile) -> Result<Pixtral> {
        let size = self.image.size.clone().unwrap_or_default();
        let edge = match size.longest_edge {
            Some(edge) => Some(u32::try_from(edge).unwrap_or(u32::MAX)),
            None if size.height.is_none() && size.width.is_none() => Some(1024),
            None => None,
        };
        // The image processor alone has no merge; its patch size then is a token's.
        let patch = self.patch_size(processor.patch_size.or(self.image.patch_size), 16)?;
        let merge = self.number("spatial_merge_size", processor.spatial_merge_size, 1, 16)?;
        let name = |name: &Option<String>, default: &str| name.clone().unwrap_or_else(|| default.into());
        Ok(Pixtral {
            token_size: patch * merge,
            max_width: self.number("size.longest_edge or size.width", edge.or(size.width), 0, 8192)?,
            max_height: self.number("size.longest_edge or size.height", edge.or(size.height), 0, 8192)?,
            image_token: name(&processor.image_token, "[IMG]"),
            image_break_token: name(&processor.image_break_token, "[IMG_BREAK]"),
            image_end_token: name(&processor.image_end_token, "[IMG_END]"),
        })
    }

    fn lfm2_vl(&self, processor: &ProcessorFile) -> Result<Lfm2Vl> {
        let image = self.image;
        if processor.use_image_special_tokens == Some(false) {
            return Err(refuse(PROCESSOR, "use_image_special_tokens false is not supported: remove it"));
        }
        let splits = image.do_image_splitting.unwrap_or(true);
        let tiles = |name, value, default| self.number(name, value, default, 64);
        let min_tiles = tiles("min_tiles", image.min_tiles.filter(|_| splits), if splits { 2 } else { 1 })?;
        let max_tiles = tiles("max_tiles", image.max_tiles.filter(|_| splits), if splits { 10 } else { 1 })?;
        let patch = self.number("encoder_patch_size", image.encoder_patch_size, 16, 256)?;
        let tile_size = self.number("tile_size", image.tile_size, 512, 2048)?;
        let min_image_tokens = self.number("min_image_tokens", image.min_image_tokens, 64, 4096)?;
        let max_image_tokens = self.number("max_image_tokens", image.max_image_tokens, 256, 4096)?;
        if min_tiles > max_tiles || min_image_tokens > max_image_tokens || tile_size % patch != 0 {
            return Err(refuse(
                self.file,
                "min_tiles and min_image_tokens must not exceed max_tiles and max_image_tokens, and \
                 tile_size must be a multiple of encoder_patch_size",
            ));
        }
        Ok(Lfm2Vl {
            encoder_patch_size: patch,
            downsample_factor: self.number("downsample_factor", image.downsample_factor, 2, 16)?,
            min_image_tokens,
            max_image_tokens,
            tile_size,
            min_tiles,
            max_tiles,
            use_thumbnail: image.use_thumbnail.unwrap_or(true),
            max_pixels_tolerance: image.max_pixels_tolerance.unwrap_or(2.0),
        })
    }
}
