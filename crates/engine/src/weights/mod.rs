//! Tensors by path, with their shapes checked; the only place that knows how weights are stored.

mod layout;
mod matrix;
mod quantization_config;
mod random;
mod reader;
mod skip;
mod stats;
mod store;

use std::{collections::BTreeSet, rc::Rc};

use mlx::{Array, Dtype, load::Safetensors};
use serde_json::Value;

use self::store::{Store, Tensor, to_i32};
pub use self::{
    layout::{Layout, Recipe, Rule, Transform, is_hub_conv1d},
    quantization_config::QuantizationConfig,
    random::Random,
    reader::Reader,
    skip::{Action, action_for},
    store::Types,
};
use crate::{
    error::{LoadError, Result},
    nn::{Embedding, Linear, Matrix, RmsNorm, Stack},
    request::WeightSummary,
};

/// A scope of a checkpoint: `weights.sub("layers").sub(3)` sees the tensors below `layers.3.`.
#[derive(Clone)]
pub struct Weights {
    store: Rc<Store>,
    prefix: String,
    norm_offset: f32,
}

impl Weights {
    /// The tensors of `files` in MLX's layout, by their canonical paths.
    ///
    /// # Errors
    /// A tensor is there twice or has an unknown type, or tensors do not make up those of MLX's layout.
    pub fn new(
        files: Vec<Safetensors>,
        layout: &Layout,
        types: Types,
        quantization_config: QuantizationConfig,
        progress: Box<dyn FnMut(usize, usize)>,
    ) -> Result<Weights> {
        let store = Store::new(Reader::new(files)?, types, progress);
        Weights::of(Store { quantization_config, ..store }, layout)
    }

    fn of(mut store: Store, layout: &Layout) -> Result<Weights> {
        store.index(layout)?;
        Ok(Weights { store: Rc::new(store), prefix: String::new(), norm_offset: 0.0 })
    }

    /// Bytes of all tensors as they are stored; 0 of weights that are made up.
    pub fn total_bytes(&self) -> usize {
        self.store.loaded.borrow().total
    }

    /// Weights that are made up as they are asked for.
    pub fn random(random: Random, types: Types, progress: Box<dyn FnMut(usize, usize)>) -> Weights {
        let store = Store { random: Some(random), ..Store::new(Reader::default(), types, progress) };
        Weights { store: Rc::new(store), prefix: String::new(), norm_offset: 0.0 }
    }

    /// A checkpoint of which only names, types and shapes are known: enough to see whether a model fits it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn described(
        tensors: impl IntoIterator<Item = (String, Dtype, Vec<i32>)>,
        layout: &Layout,
        quantization_config: QuantizationConfig,
    ) -> Result<Weights> {
        let store = Store::new(Reader::described(tensors), Types::default(), Box::new(|_, _| {}));
        Weights::of(Store { quantization_config, ..store }, layout)
    }

    pub fn sub(&self, name: impl std::fmt::Display) -> Weights {
        Weights { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The same scope of a checkpoint that stores the weights of RMS norms as `weight - offset`.
    pub fn with_norm_offset(&self, norm_offset: f32) -> Weights {
        Weights { norm_offset, ..self.clone() }
    }

    pub fn has(&self, name: &str) -> bool {
        self.store.tensors.contains_key(&self.path(name))
    }

    /// Bytes of all tensors read so far, as stored.
    pub fn loaded_bytes(&self) -> usize {
        self.store.loaded.borrow().bytes
    }

    /// What was read so far, of a model with this text part of config.json.
    pub fn summary(&self, config: &Value) -> WeightSummary {
        self.store.stats.borrow().summary(config)
    }

    /// Says that a tensor is known and not needed; it may be absent.
    pub fn skip(&self, name: &str) {
        if let Some(tensor) = self.store.tensors.get(&self.path(name)) {
            tensor.used.set(true);
        }
    }

    /// Checks that nothing of the checkpoint was left over: a model that computes without one of its tensors computes
    /// something else.
    ///
    /// # Errors
    /// Names tensors that nobody asked for.
    pub fn all_used(&self) -> Result<()> {
        let unused = self.store.tensors.values().filter(|tensor| !tensor.used.get());
        let unused: BTreeSet<&String> = unused.flat_map(|tensor| &tensor.recipe.sources).collect();
        match unused.first() {
            None => Ok(()),
            Some(first) => Err(LoadError::UnusedTensors { first: first.to_string(), count: unused.len() }),
        }
    }

    /// Reads a tensor of the given shape, as stored.
    ///
    /// # Errors
    /// It is missing or has another shape: the error names it.
    pub fn tensor(&self, name: &str, shape: &[i32]) -> Result<Array> {
        if let Some(random) = self.store.random {
            let array = random.tensor(&self.path(name), shape)?;
            self.store.made_up(&self.path(name), &array);
            return Ok(array);
        }
        self.check_shape(name, shape)?;
        let tensor = self.locate(name)?;
        if tensor.recipe.is_whole() {
            return self.store.read_whole(&tensor.recipe.sources, shape, tensor.dtype);
        }
        let source = self.cut_source(tensor)?.reshape(&to_i32(&tensor.recipe.view));
        self.materialized(tensor.recipe.apply(source).contiguous())
    }

    /// The tensor of the files that `tensor` is cut from, unpacked if it is quantised.
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

    /// A quantised matrix by its canonical path, whose rows are all but the last axis of `view`.
    fn unpacked(&self, path: &str, view: &[usize]) -> Result<Array> {
        let [rows @ .., inputs] = view else { unreachable!("a matrix has two axes") };
        let shape = to_i32(&[rows.iter().product(), *inputs]);
        let root = Weights { prefix: String::new(), ..self.clone() };
        match root.matrix(path, &shape)? {
            Matrix::Dense(weight) => Ok(weight),
            // As exact as float32 scales allow; such matrices are small.
            Matrix::Quantized(matrix) => {
                Ok(matrix.dequantize(self.store.types.weights.unwrap_or(Dtype::Float32)))
            }
        }
    }

    /// As [`tensor`](Weights::tensor), of floating-point values.
    ///
    /// # Errors
    /// It has another type: a format that is not supported.
    pub fn float_tensor(&self, name: &str, shape: &[i32]) -> Result<Array> {
        let array = self.tensor(name, shape)?;
        if array.dtype().is_float() {
            return Ok(array);
        }
        Err(self.bad(name, format!("it is {}, but must be floating-point", array.dtype().name())))
    }

    /// As [`float_tensor`](Weights::float_tensor), converted to float32.
    pub fn float32(&self, name: &str, shape: &[i32]) -> Result<Array> {
        Ok(self.float_tensor(name, shape)?.astype(Dtype::Float32))
    }

    /// Shape of a tensor, without reading it. Of one that is yet to be made up, all that is certain is MLX's layout of a
    /// convolution, `[channels, width, 1]`; sizes that depend on the model are 0.
    ///
    /// # Errors
    /// It is missing.
    pub fn shape(&self, name: &str) -> Result<Vec<i32>> {
        if self.store.random.is_some() {
            return Ok(vec![0, 0, 1]);
        }
        Ok(self.find(name)?.shape.clone())
    }

    /// A linear layer `[outputs, inputs]` without bias, quantised if the checkpoint holds scales for it.
    pub fn linear(&self, name: &str, outputs: i32, inputs: i32) -> Result<Linear> {
        self.linear_with(name, outputs, inputs, false)
    }

    /// As [`linear`](Weights::linear), with a bias `[outputs]` if `bias`.
    pub fn linear_with(&self, name: &str, outputs: i32, inputs: i32, bias: bool) -> Result<Linear> {
        let weight = self.matrix(name, &[outputs, inputs])?;
        self.layer(weight, self.bias(name, outputs, bias)?)
    }

    /// What a mixture of experts chooses by, `[experts, inputs]`, with a bias if `bias`. Its
    /// products are never rounded: the smallest difference may choose another expert, whose output
    /// is another altogether.
    pub fn router(&self, name: &str, experts: i32, inputs: i32, bias: bool) -> Result<Linear> {
        let weight = self.matrix(name, &[experts, inputs])?;
        Ok(Linear::unrounded(weight, self.bias(name, experts, bias)?))
    }

    fn bias(&self, name: &str, outputs: i32, there: bool) -> Result<Option<Array>> {
        let read = || Ok(self.cast(self.sub(name).float_tensor("bias", &[outputs])?));
        there.then(read).transpose()
    }

    /// In the order in which kernels read it, unless nothing is read: then there are only shapes.
    fn layer(&self, weight: Matrix, bias: Option<Array>) -> Result<Linear> {
        if self.store.is_described() {
            Ok(Linear::new(weight, bias))
        } else {
            Ok(Linear::packed(weight, bias)?)
        }
    }

    /// An embedding table `[vocab_size, hidden_size]`.
    pub fn embedding(&self, name: &str, vocab_size: i32, hidden_size: i32) -> Result<Embedding> {
        let table = self.layer(self.matrix(name, &[vocab_size, hidden_size])?, None)?;
        Ok(Embedding::new(table, vocab_size, self.store.types.activations))
    }

    /// A stack of `count` matrices `[outputs, inputs]`.
    pub fn stacked(&self, name: &str, count: i32, outputs: i32, inputs: i32) -> Result<Stack> {
        Ok(Stack::new(self.matrix(name, &[count, outputs, inputs])?))
    }

    /// An RMS norm with a weight `[size]`, in float32, to which the [offset](Weights::with_norm_offset) is added.
    pub fn rms_norm(&self, name: &str, size: i32, eps: f32) -> Result<RmsNorm> {
        let weight = self.sub(name).float32("weight", &[size])?;
        Ok(RmsNorm::new(if self.norm_offset == 0.0 { weight } else { weight + self.norm_offset }, eps))
    }

    /// A depthwise convolution `[channels, width]`: `[channels, 1, width]` in the hub, `[channels, width, 1]` in MLX.
    pub fn conv1d(&self, name: &str, channels: i32, width: i32) -> Result<Array> {
        let name = format!("{name}.weight");
        let shape = match is_hub_conv1d(&self.shape(&name)?) {
            true => [channels, 1, width],
            false => [channels, width, 1],
        };
        Ok(self.cast(self.float_tensor(&name, &shape)?).reshape(&[channels, width]))
    }

    /// Type that weights must have on this device, or that of `stored`.
    pub fn cast(&self, stored: Array) -> Array {
        match self.store.types.weights {
            Some(dtype) => stored.astype(dtype),
            None => stored,
        }
    }

    /// Computes an array now, so that what it was made from can be freed before the next one is read.
    pub fn materialized(&self, array: Array) -> Result<Array> {
        if !self.store.is_described() {
            mlx::eval([&array])?;
        }
        Ok(array)
    }

    fn find(&self, name: &str) -> Result<&Tensor> {
        let path = self.path(name);
        self.store.tensors.get(&path).ok_or(LoadError::MissingTensor(path))
    }

    /// The tensor's place, from now on counted as used.
    fn locate(&self, name: &str) -> Result<&Tensor> {
        let tensor = self.find(name)?;
        tensor.used.set(true);
        // What a quantised matrix is unpacked to is counted as that matrix.
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
