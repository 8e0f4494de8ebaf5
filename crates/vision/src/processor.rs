//! A checkpoint's image processor: bytes of a file to the tensors that its vision tower reads.

use std::fmt::Write;

use ring::digest;

use crate::{
    ConfigFiles, Deadline, Error, Filter, Header, Layout, Limits, Plan, Result, RgbImage, View,
    config::Config,
    decode::decode,
    families::Family,
    normalize::Normalization,
    patches::{self, Area},
    resize::resize,
};

/// One tensor of the tower's input.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its shape; of planes three numbers, of patches two.
    pub shape: Vec<usize>,
    /// Its values, in row-major order.
    pub values: Vec<f32>,
    /// Rows of patches; of planes, of pixels.
    pub rows: usize,
    /// Columns of patches; of planes, of pixels.
    pub columns: usize,
}

/// A preprocessed image.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessed {
    /// One tensor, or one for each tile and the thumbnail.
    pub tensors: Vec<Tensor>,
    /// The sizes, and what the image's placeholder expands to.
    pub plan: Plan,
    /// SHA-256 of everything that the tensors were computed from: equal digests mean equal tensors.
    pub digest: [u8; 32],
}

/// The image processor of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    family: Family,
    filter: Filter,
    normalization: Normalization,
}

impl Processor {
    /// Reads a checkpoint's configuration.
    ///
    /// # Errors
    /// [`Error::Config`]: neither file describes an image processor, or not a supported one.
    pub fn from_config(files: ConfigFiles) -> Result<Processor> {
        let Config { family, filter, normalization } = Config::parse(files)?;
        Ok(Processor { family, filter, normalization })
    }

    /// The same processor with at most `max_tokens` embeddings per image, by a smaller size.
    ///
    /// # Errors
    /// [`Error::Config`]: the family cannot have so few.
    pub fn with_max_image_tokens(&self, max_tokens: u32) -> Result<Processor> {
        let family = self.family.limited(max_tokens).ok_or_else(|| Error::Config {
            file: "preprocessor_config.json",
            reason: format!("the model cannot have at most {max_tokens} tokens per image; allow more"),
        })?;
        Ok(Processor { family, ..self.clone() })
    }

    /// The special token that chat templates print for an image; its expansion replaces it.
    pub fn placeholder(&self) -> &str {
        self.family.placeholder()
    }

    /// The special token in whose place embeddings stand.
    pub fn image_token(&self) -> &str {
        self.family.image_token()
    }

    /// The order of values in tensors.
    pub fn layout(&self) -> Layout {
        self.family.layout()
    }

    /// Sizes and tokens for an upright image of this size, without its pixels.
    ///
    /// # Errors
    /// [`Error::Size`]: the model has no tokens for such a size.
    pub fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        self.family.plan(width, height)
    }

    /// Maximum bytes in memory while an image with this header is decoded and preprocessed; the
    /// encoded file is not counted, the tensors are.
    ///
    /// # Errors
    /// Those of [`Processor::plan`].
    pub fn memory(&self, header: &Header) -> Result<u64> {
        let (width, height) = header.size();
        let plan = self.plan(width, height)?;
        let image = 3 * u64::from(width) * u64::from(height);
        let resizing = |view: &View| 3 * u64::from(view.width) * u64::from(height) + view.pixel_bytes();
        let tensors: u64 =
            plan.views.iter().map(View::pixel_bytes).sum::<u64>() * 4 * u64::from(self.layout().repeats());
        let resizing = plan.views.iter().map(resizing).max().unwrap_or(0);
        // Weights of filters, and rows being widened.
        Ok(header.decode_memory.max(image + resizing + tensors) + (1 << 20))
    }

    /// Decodes and preprocesses an image file, within limits.
    ///
    /// # Errors
    /// The file is refused; the error says why and what to send instead.
    pub fn process(&self, bytes: &[u8], limits: &Limits) -> Result<Preprocessed> {
        let deadline = limits.deadline();
        let header = Header::read(bytes, limits)?;
        limits.check_memory(self.memory(&header)?)?;
        let image = decode(bytes, &header, deadline)?;
        self.preprocess(&image, deadline)
    }

    /// Preprocesses upright pixels.
    ///
    /// # Errors
    /// Those of [`Processor::plan`], or the deadline passed.
    pub fn preprocess(&self, image: &RgbImage, deadline: Deadline) -> Result<Preprocessed> {
        let plan = self.plan(image.width, image.height)?;
        let mut tensors = vec![];
        let mut digest = self.begin_digest();
        for view in &plan.views {
            deadline.check()?;
            let resized = resize(image, (view.width, view.height), self.filter, deadline)?;
            digest.update(format!("{view:?}").as_bytes());
            digest.update(&resized.data);
            match view.tile {
                None => tensors.push(self.tensor(&resized, Area::of(&resized))),
                Some(side) => {
                    let areas = tiles(&resized, side as usize);
                    tensors.extend(areas.map(|area| self.tensor(&resized, area)));
                }
            }
        }
        deadline.check()?;
        let digest = std::array::from_fn({
            let digest = digest.finish();
            move |index| digest.as_ref()[index]
        });
        Ok(Preprocessed { tensors, plan, digest })
    }

    /// A digest of the processor's constants, to be continued with pixels.
    fn begin_digest(&self) -> digest::Context {
        let mut digest = digest::Context::new(&digest::SHA256);
        let mut constants = String::new();
        // Writing to a string does not fail.
        let _ = write!(constants, "{:?} {:?}", self.family, self.filter);
        digest.update(constants.as_bytes());
        self.normalization.constants().for_each(|bytes| digest.update(&bytes));
        digest
    }

    fn tensor(&self, image: &RgbImage, area: Area) -> Tensor {
        let layout = self.layout();
        let patch = layout.patch() as usize;
        let values = match layout {
            Layout::Planes => patches::planes(image, &self.normalization),
            Layout::Raster { .. } => patches::raster(image, area, patch, &self.normalization),
            Layout::MergeOrder { merge, frames, .. } => {
                let (merge, frames) = (merge as usize, frames as usize);
                patches::merge_order(image, patch, merge, frames, &self.normalization)
            }
        };
        let (rows, columns) = (area.height / patch, area.width / patch);
        let shape = match layout {
            Layout::Planes => vec![3, rows, columns],
            _ => vec![rows * columns, values.len() / (rows * columns)],
        };
        Tensor { shape, values, rows, columns }
    }
}

/// Square tiles, row by row.
fn tiles(image: &RgbImage, side: usize) -> impl Iterator<Item = Area> {
    let (width, height) = (image.width as usize, image.height as usize);
    let tops = (0..height).step_by(side);
    tops.flat_map(move |top| {
        let lefts = (0..width).step_by(side);
        lefts.map(move |left| Area { left, top, width: side, height: side })
    })
}
