//! Tensors by path, with checked shapes; no other module knows how weights are stored.

mod files;
mod layers;
mod layout;
mod matrix;
mod quantization_config;
mod random;
mod skip;
mod stats;
mod store;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, rc::Rc};

use mlx::{Array, Dtype, load::Safetensors};
use nn::{Embedding, LayerNorm, Linear, Matrix, RmsNorm, StackedLinear};
use serde_json::Value;

pub use self::skip::Action;
use self::store::{Store, Tensor, to_i32};
pub(crate) use self::{
    files::WeightFiles,
    layout::{Layout, Recipe, Rule, Transform, is_hub_conv1d},
    quantization_config::{QuantizationConfig, has_mxfp4_experts},
    random::Random,
    skip::action_for,
    store::Types,
};
use crate::{
    api::WeightSummary,
    error::{LoadError, Result},
};

/// A scope of a checkpoint: `weights.sub("layers").sub(3)` sees the tensors below `layers.3.`.
#[derive(Clone)]
pub(crate) struct Weights {
    store: Rc<Store>,
    prefix: String,
    norm_offset: f32,
}

impl Weights {
    /// The tensors of `files` in MLX's layout, by their canonical paths.
    ///
    /// # Errors
    /// A tensor is duplicate or of an unknown type, or does not fit MLX's layout.
    pub(crate) fn new(
        files: Vec<Safetensors>,
        layout: &Layout,
        types: Types,
        quantization_config: QuantizationConfig,
        progress: Box<dyn FnMut(usize, usize)>,
    ) -> Result<Weights> {
        let store = Store::new(WeightFiles::new(files)?, types, progress);
        Weights::of(Store { quantization_config, ..store }, layout)
    }

    fn of(mut store: Store, layout: &Layout) -> Result<Weights> {
        store.index(layout)?;
        Ok(Weights { store: Rc::new(store), prefix: String::new(), norm_offset: 0.0 })
    }

    /// Bytes of all tensors as stored; 0 for random weights.
    pub(crate) fn total_bytes(&self) -> usize {
        self.store.loaded.borrow().total
    }

    /// Random weights, generated on demand.
    pub(crate) fn random(random: Random, types: Types, progress: Box<dyn FnMut(usize, usize)>) -> Weights {
        let store = Store { random: Some(random), ..Store::new(WeightFiles::default(), types, progress) };
        Weights { store: Rc::new(store), prefix: String::new(), norm_offset: 0.0 }
    }

    /// A checkpoint without data: enough to check whether a model fits it, and what it takes.
    pub(crate) fn described(
        tensors: impl IntoIterator<Item = (String, Dtype, Vec<i32>)>,
        layout: &Layout,
        types: Types,
        quantization_config: QuantizationConfig,
    ) -> Result<Weights> {
        let store = Store::new(WeightFiles::described(tensors), types, Box::new(|_, _| {}));
        Weights::of(Store { quantization_config, ..store }, layout)
    }

    pub(crate) fn sub(&self, name: impl std::fmt::Display) -> Weights {
        Weights { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The same scope, with norms stored as `weight - offset`.
    pub(crate) fn with_norm_offset(&self, norm_offset: f32) -> Weights {
        Weights { norm_offset, ..self.clone() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.store.tensors.contains_key(&self.path(name))
    }

    /// Whether there is any tensor in this scope and not in its part `name`; never with random
    /// weights.
    pub(crate) fn has_other_than(&self, name: &str) -> bool {
        let other = format!("{}{name}.", self.prefix);
        let own = |path: &String| path.starts_with(&self.prefix) && !path.starts_with(&other);
        self.store.tensors.keys().any(own)
    }

    /// The type of activations: the one that the device computes in, or that of a tensor.
    ///
    /// # Errors
    /// There is no such tensor.
    pub(crate) fn activations(&self, name: &str) -> Result<Dtype> {
        self.store.types.activations.map_or_else(|| Ok(self.find(name)?.dtype), Ok)
    }

    /// Bytes of all tensors read so far, as stored.
    pub(crate) fn loaded_bytes(&self) -> usize {
        self.store.loaded.borrow().bytes
    }

    /// Bytes of all tensors used so far, also of those that have no data.
    pub(crate) fn used_bytes(&self) -> usize {
        self.store.stats.borrow().total()
    }

    /// Statistics of the tensors read so far; `config` is the text part of config.json.
    pub(crate) fn summary(&self, config: &Value) -> WeightSummary {
        self.store.stats.borrow().summary(config)
    }

    /// Marks a tensor, if present, as not needed.
    pub(crate) fn skip(&self, name: &str) {
        if let Some(tensor) = self.store.tensors.get(&self.path(name)) {
            tensor.used.set(true);
        }
    }

    /// Marks all tensors in this scope as not needed.
    pub(crate) fn skip_all(&self) {
        let own = self.store.tensors.iter().filter(|(path, _)| path.starts_with(&self.prefix));
        own.for_each(|(_, tensor)| tensor.used.set(true));
    }

    /// Checks that no tensor is unused: a model that ignores one computes something else.
    ///
    /// # Errors
    /// Some are unused; the error names one.
    pub(crate) fn all_used(&self) -> Result<()> {
        let unused = self.store.tensors.values().filter(|tensor| !tensor.used.get());
        let unused: BTreeSet<&String> = unused.flat_map(|tensor| &tensor.recipe.sources).collect();
        match unused.first() {
            None => Ok(()),
            Some(first) => Err(LoadError::UnusedTensors { first: first.to_string(), count: unused.len() }),
        }
    }

    /// Reads a tensor of this shape, in its stored type.
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub(crate) fn tensor(&self, name: &str, shape: &[i32]) -> Result<Array> {
        if let Some(random) = self.store.random {
            let array = random.tensor(&self.path(name), shape)?;
            self.store.count_generated(&self.path(name), &array);
            return Ok(array);
        }
        self.check_shape(name, shape)?;
        let tensor = self.take(name)?;
        if tensor.recipe.is_whole() {
            return self.store.read_whole(&tensor.recipe.sources, shape, tensor.dtype);
        }
        let source = self.cut_source(tensor)?.reshape(&to_i32(&tensor.recipe.view));
        self.materialized(tensor.recipe.apply(source).contiguous())
    }

    /// The tensor of the checkpoint that `tensor` is cut from, dequantised if necessary.
    fn cut_source(&self, tensor: &Tensor) -> Result<Array> {
        let source = &self.store.cut[&tensor.recipe.sources[0]];
        let values = match (source.values.take(), &tensor.packed) {
            (Some(values), _) => values,
            (None, Some(path)) => self.unpacked(path, &tensor.recipe.view)?,
            (None, None) => {
                self.store.read_whole(&tensor.recipe.sources, &to_i32(&tensor.recipe.view), tensor.dtype)?
            }
        };
        source.pending.set(source.pending.get().saturating_sub(1));
        if source.pending.get() > 0 {
            source.values.replace(Some(values.clone()));
        }
        Ok(values)
    }

    /// Dequantises the matrix at a canonical path; its columns are `view`'s last axis.
    fn unpacked(&self, path: &str, view: &[usize]) -> Result<Array> {
        let [rows @ .., inputs] = view else { unreachable!("a matrix has two axes") };
        let shape = to_i32(&[rows.iter().product(), *inputs]);
        let root = Weights { prefix: String::new(), ..self.clone() };
        match root.matrix(path, &shape)? {
            Matrix::Dense(weight) => Ok(weight),
            // Float32 is exact, and such matrices are small.
            Matrix::Quantized(matrix) => {
                Ok(matrix.dequantize(self.store.types.weights.unwrap_or(Dtype::Float32)))
            }
        }
    }

    /// [`tensor`](Weights::tensor) with floating-point values.
    ///
    /// # Errors
    /// It has another type.
    pub(crate) fn float_tensor(&self, name: &str, shape: &[i32]) -> Result<Array> {
        let array = self.tensor(name, shape)?;
        if array.dtype().is_float() {
            return Ok(array);
        }
        Err(self.bad(name, format!("it is {}, but must be floating-point", array.dtype().name())))
    }

    /// [`float_tensor`](Weights::float_tensor) converted to float32.
    pub(crate) fn float32(&self, name: &str, shape: &[i32]) -> Result<Array> {
        Ok(self.float_tensor(name, shape)?.astype(Dtype::Float32))
    }

    /// Shape of a tensor, from the header. Random weights have only the shape of MLX's
    /// convolutions, `[channels, width, 1]`, with 0 for unknown sizes.
    ///
    /// # Errors
    /// It is missing.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<i32>> {
        if self.store.random.is_some() {
            return Ok(vec![0, 0, 1]);
        }
        Ok(self.find(name)?.shape.clone())
    }

    /// A linear layer `[outputs, inputs]` without bias, quantised if it has scales.
    pub(crate) fn linear(&self, name: &str, outputs: i32, inputs: i32) -> Result<Linear> {
        self.linear_with(name, outputs, inputs, false)
    }

    /// [`linear`](Weights::linear) with a bias `[outputs]` if `bias`.
    pub(crate) fn linear_with(&self, name: &str, outputs: i32, inputs: i32, bias: bool) -> Result<Linear> {
        let weight = self.matrix(name, &[outputs, inputs])?;
        self.layer(weight, self.bias(name, outputs, bias)?)
    }

    /// The router of a mixture of experts, `[experts, inputs]`, with a bias if `bias`. Its products
    /// are never rounded: a tiny difference may choose another expert.
    pub(crate) fn router(&self, name: &str, experts: i32, inputs: i32, bias: bool) -> Result<Linear> {
        let weight = self.matrix(name, &[experts, inputs])?;
        Ok(Linear::unrounded(weight, self.bias(name, experts, bias)?)?)
    }

    fn bias(&self, name: &str, outputs: i32, there: bool) -> Result<Option<Array>> {
        let read = || Ok(self.cast(self.sub(name).float_tensor("bias", &[outputs])?));
        there.then(read).transpose()
    }

    /// Packs the weight for the kernels, unless it is only described.
    fn layer(&self, weight: Matrix, bias: Option<Array>) -> Result<Linear> {
        if self.store.is_described() {
            Ok(Linear::new(weight, bias))
        } else {
            Ok(Linear::prepacked(weight, bias)?)
        }
    }

    /// An embedding table `[vocab_size, hidden_size]`.
    pub(crate) fn embedding(&self, name: &str, vocab_size: i32, hidden_size: i32) -> Result<Embedding> {
        let table = self.layer(self.matrix(name, &[vocab_size, hidden_size])?, None)?;
        Ok(Embedding::new(table, vocab_size, self.store.types.activations))
    }

    /// A stack of `count` matrices `[outputs, inputs]`.
    pub(crate) fn stacked(&self, name: &str, count: i32, outputs: i32, inputs: i32) -> Result<StackedLinear> {
        let stack = self.matrix(name, &[count, outputs, inputs])?;
        Ok(if self.store.is_described() {
            StackedLinear::new(stack)
        } else {
            StackedLinear::prepacked(stack)?
        })
    }

    /// An RMS norm `[size]` in float32, plus the [offset](Weights::with_norm_offset).
    pub(crate) fn rms_norm(&self, name: &str, size: i32, eps: f32) -> Result<RmsNorm> {
        let weight = self.sub(name).float32("weight", &[size])?;
        Ok(RmsNorm::new(if self.norm_offset == 0.0 { weight } else { weight + self.norm_offset }, eps))
    }

    /// A layer norm `[size]` in float32.
    pub(crate) fn layer_norm(&self, name: &str, size: i32, eps: f32) -> Result<LayerNorm> {
        let w = self.sub(name);
        Ok(LayerNorm::new(w.float32("weight", &[size])?, w.float32("bias", &[size])?, eps))
    }

    /// A depthwise convolution `[channels, width]`, stored in the hub's layout or MLX's.
    pub(crate) fn conv1d(&self, name: &str, channels: i32, width: i32) -> Result<Array> {
        let name = format!("{name}.weight");
        let shape = match is_hub_conv1d(&self.shape(&name)?) {
            true => [channels, 1, width],
            false => [channels, width, 1],
        };
        Ok(self.cast(self.float_tensor(&name, &shape)?).reshape(&[channels, width]))
    }

    /// Casts to the type that the device needs.
    pub(crate) fn cast(&self, stored: Array) -> Array {
        match self.store.types.weights {
            Some(dtype) => stored.astype(dtype),
            None => stored,
        }
    }

    /// Evaluates an array, so that its inputs can be freed before the next read.
    pub(crate) fn materialized(&self, array: Array) -> Result<Array> {
        if !self.store.is_described() {
            mlx::eval([&array])?;
        }
        Ok(array)
    }

    fn find(&self, name: &str) -> Result<&Tensor> {
        let path = self.path(name);
        self.store.tensors.get(&path).ok_or(LoadError::MissingTensor(path))
    }

    /// Finds a tensor and marks it as used.
    fn take(&self, name: &str) -> Result<&Tensor> {
        let tensor = self.find(name)?;
        tensor.used.set(true);
        // Otherwise the quantised source is counted.
        if tensor.packed.is_none() {
            self.store.stats.borrow_mut().add(&self.path(name), tensor.dtype, &tensor.shape);
        }
        Ok(tensor)
    }

    fn check_shape(&self, name: &str, expected: &[i32]) -> Result<()> {
        let found = self.shape(name)?;
        if found == expected {
            return Ok(());
        }
        Err(LoadError::WrongShape { name: self.path(name), found, expected: expected.to_vec() })
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn bad(&self, name: &str, message: String) -> LoadError {
        LoadError::BadTensor { name: self.path(name), message }
    }
}
