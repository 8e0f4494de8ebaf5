//! The tensors of a checkpoint in MLX's layout by canonical path, and statistics of reading them.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

use mlx::{Array, Dtype};

use super::{Layout, QuantizationConfig, Random, Recipe, WeightFiles, stats::WeightStats};
use crate::error::{LoadError, Result};

pub(super) struct Store {
    pub files: RefCell<WeightFiles>,
    /// By canonical path.
    pub tensors: HashMap<String, Tensor>,
    /// Tensors of the checkpoint that others are cut from, by stored name.
    pub cut: HashMap<String, CutSource>,
    pub types: Types,
    pub quantization_config: QuantizationConfig,
    /// Generates the tensors instead of reading them.
    pub random: Option<Random>,
    pub loaded: RefCell<LoadProgress>,
    pub stats: RefCell<WeightStats>,
}

/// A tensor in MLX's layout.
pub(super) struct Tensor {
    pub recipe: Recipe,
    pub dtype: Dtype,
    pub shape: Vec<i32>,
    /// Path of the quantised matrix that it is cut from, without `.weight`.
    pub packed: Option<String>,
    pub used: Cell<bool>,
}

/// A tensor that is read once for all tensors cut from it.
#[derive(Default)]
pub(super) struct CutSource {
    pub values: RefCell<Option<Array>>,
    /// Number of tensors yet to be cut from it.
    pub pending: Cell<usize>,
}

/// Types to convert to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Types {
    /// Type of activations; `None` for the embedding's.
    pub activations: Option<Dtype>,
    /// Type of floating-point weights; `None` for the stored one.
    pub weights: Option<Dtype>,
}

pub(super) struct LoadProgress {
    pub bytes: usize,
    pub total: usize,
    pub progress: Box<dyn FnMut(usize, usize)>,
}

impl Store {
    pub(super) fn new(files: WeightFiles, types: Types, progress: Box<dyn FnMut(usize, usize)>) -> Store {
        Store {
            files: RefCell::new(files),
            tensors: HashMap::new(),
            cut: HashMap::new(),
            types,
            quantization_config: QuantizationConfig::default(),
            random: None,
            loaded: RefCell::new(LoadProgress { bytes: 0, total: 0, progress }),
            stats: RefCell::default(),
        }
    }

    /// Indexes the tensors that have a canonical path.
    ///
    /// # Errors
    /// One is duplicate, or does not fit MLX's layout.
    pub(super) fn index(&mut self, layout: &Layout) -> Result<()> {
        let files = self.files.borrow();
        let mut names = files.names();
        names.retain(|name| layout.canonical(name).is_some());
        self.loaded.borrow_mut().total = names.iter().map(|name| files.bytes_of(name)).sum();
        for (name, recipe) in layout.to_load(&files, &names)? {
            let source = recipe.sources[0].clone();
            let mut packed = None;
            if !recipe.is_whole() {
                let pending = &self.cut.entry(source.clone()).or_default().pending;
                pending.set(pending.get() + 1);
                packed = files.scales_of(&source).and(layout.canonical(&source));
            }
            if let Some(path) = &packed {
                let whole = Recipe::whole(vec![source.clone()], files.shape(&source).to_vec(), false);
                self.tensors.insert(path.clone(), Tensor::new(whole, files.dtype(&source)?, None));
            }
            let Some(path) = layout.canonical(&name) else { continue };
            let packed = packed.and_then(|path| Some(path.strip_suffix(".weight")?.to_string()));
            let tensor = Tensor::new(recipe, files.dtype(&source)?, packed);
            if let Some(other) = self.tensors.insert(path.clone(), tensor) {
                let message = format!("it is there twice, the other time as {}", other.recipe.sources[0]);
                return Err(LoadError::BadTensor { name: path, message });
            }
        }
        Ok(())
    }

    /// Reads tensors of the checkpoint into one array, stacked.
    pub(super) fn read_whole(&self, sources: &[String], shape: &[i32], dtype: Dtype) -> Result<Array> {
        self.fill(shape, dtype, |bytes| {
            let size = bytes.len() / sources.len();
            sources
                .iter()
                .enumerate()
                .try_for_each(|(i, name)| self.read(name, &mut bytes[i * size..][..size]))
        })
    }

    /// Whether there is no data, only shapes.
    pub(super) fn is_described(&self) -> bool {
        self.random.is_none() && !self.files.borrow().has_files()
    }

    /// A new array filled by `read`; lazy zeros without data.
    fn fill(
        &self,
        shape: &[i32],
        dtype: Dtype,
        read: impl FnOnce(&mut [u8]) -> mlx::Result<()>,
    ) -> Result<Array> {
        if self.is_described() {
            return Ok(Array::full(shape, 0.0, dtype));
        }
        Ok(Array::fill_with(shape, dtype, read)?)
    }

    fn read(&self, name: &str, bytes: &mut [u8]) -> mlx::Result<()> {
        self.files.borrow_mut().read(name, bytes)?;
        self.loaded.borrow_mut().advance(bytes.len());
        Ok(())
    }

    /// Counts a generated array.
    pub(super) fn count_generated(&self, path: &str, array: &Array) {
        self.stats.borrow_mut().add(path, array.dtype(), array.shape());
        self.loaded.borrow_mut().advance(array.size() * array.dtype().size());
    }
}

impl Tensor {
    /// `dtype` is that of the sources.
    fn new(recipe: Recipe, dtype: Dtype, packed: Option<String>) -> Tensor {
        let dtype = if recipe.words { Dtype::Uint32 } else { dtype };
        let shape = to_i32(&recipe.shape);
        Tensor { recipe, dtype, shape, packed, used: Cell::new(false) }
    }
}

pub(super) fn to_i32(shape: &[usize]) -> Vec<i32> {
    shape.iter().map(|&dim| i32::try_from(dim).unwrap_or(i32::MAX)).collect()
}

impl LoadProgress {
    fn advance(&mut self, bytes: usize) {
        self.bytes += bytes;
        // The total of random weights is not known in advance.
        let total = self.total.max(self.bytes);
        (self.progress)(self.bytes, total);
    }
}
