//! Tensors by path, with their shapes checked; the only place that knows how weights are stored.

mod matrix;
mod quantization_config;
mod random;
mod stats;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashMap},
    rc::Rc,
};

use mlx::{Array, Dtype, load::Safetensors};
use serde_json::Value;

use self::{matrix::Place, stats::WeightStats};
pub use self::{quantization_config::QuantizationConfig, random::Random};
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

struct Store {
    /// Empty if the checkpoint is only described.
    files: RefCell<Vec<Safetensors>>,
    /// Canonical name to where the tensor lies.
    index: HashMap<String, Tensor>,
    types: Types,
    quantization_config: QuantizationConfig,
    /// Then there are no files and no index: every tensor that is asked for is there.
    random: Option<Random>,
    loaded: RefCell<Loaded>,
    stats: RefCell<WeightStats>,
}

struct Tensor {
    file: usize,
    /// Its name in the file.
    stored: String,
    dtype: Dtype,
    shape: Vec<i32>,
    used: Cell<bool>,
}

/// Types that numbers are converted to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Types {
    /// Of activations; `None` takes the embedding's.
    pub activations: Option<Dtype>,
    /// Of floating-point weights, where the device needs them in the activations' type; `None` keeps them as stored.
    pub weights: Option<Dtype>,
}

struct Loaded {
    bytes: usize,
    total: usize,
    progress: Box<dyn FnMut(usize, usize)>,
}

impl Store {
    fn empty(types: Types, total: usize, progress: Box<dyn FnMut(usize, usize)>) -> Store {
        Store {
            files: RefCell::default(),
            index: HashMap::new(),
            types,
            quantization_config: QuantizationConfig::default(),
            random: None,
            loaded: RefCell::new(Loaded { bytes: 0, total, progress }),
            stats: RefCell::default(),
        }
    }
}

impl Loaded {
    fn advance(&mut self, bytes: usize) {
        self.bytes += bytes;
        // Of weights that are made up nobody knows the size before the end.
        let total = self.total.max(self.bytes);
        (self.progress)(self.bytes, total);
    }
}

impl Weights {
    /// `sanitize` turns a checkpoint's names into canonical ones, or drops them (`None`).
    pub fn new(
        files: Vec<Safetensors>,
        sanitize: impl Fn(&str) -> Option<String>,
        types: Types,
        quantization_config: QuantizationConfig,
        progress: Box<dyn FnMut(usize, usize)>,
    ) -> Result<Weights> {
        let mut index = HashMap::new();
        let mut total = 0;
        for (i, file) in files.iter().enumerate() {
            for stored in file.names() {
                let Some(canonical) = sanitize(&stored) else { continue };
                total += file.bytes_of(&stored);
                let (dtype, shape) = (file.dtype(&stored)?, file.shape(&stored).unwrap_or_default());
                let shape = shape.iter().map(|&d| i32::try_from(d).unwrap_or(i32::MAX)).collect();
                let tensor = Tensor { file: i, stored, dtype, shape, used: Cell::new(false) };
                if let Some(other) = index.insert(canonical.clone(), tensor) {
                    let message = format!("it is there twice, the other time as {}", other.stored);
                    return Err(LoadError::BadTensor { name: canonical, message });
                }
            }
        }
        let store = Store {
            files: RefCell::new(files),
            index,
            quantization_config,
            ..Store::empty(types, total, progress)
        };
        Ok(Weights { store: Rc::new(store), prefix: String::new(), norm_offset: 0.0 })
    }

    /// Bytes of all tensors as they are stored; 0 of weights that are made up.
    pub fn total_bytes(&self) -> usize {
        self.store.loaded.borrow().total
    }

    /// Weights that are made up as they are asked for.
    pub fn random(random: Random, types: Types, progress: Box<dyn FnMut(usize, usize)>) -> Weights {
        let store = Store { random: Some(random), ..Store::empty(types, 0, progress) };
        Weights { store: Rc::new(store), prefix: String::new(), norm_offset: 0.0 }
    }

    /// A checkpoint of which only names, types and shapes are known: enough to see whether a model fits it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn described(
        tensors: impl IntoIterator<Item = (String, Dtype, Vec<i32>)>,
        sanitize: impl Fn(&str) -> Option<String>,
        quantization_config: QuantizationConfig,
    ) -> Weights {
        let place = |(stored, dtype, shape): (String, Dtype, Vec<i32>)| {
            Some((sanitize(&stored)?, Tensor { file: 0, stored, dtype, shape, used: Cell::new(false) }))
        };
        let index = tensors.into_iter().filter_map(place).collect();
        let store =
            Store { index, quantization_config, ..Store::empty(Types::default(), 0, Box::new(|_, _| {})) };
        Weights { store: Rc::new(store), prefix: String::new(), norm_offset: 0.0 }
    }

    pub fn sub(&self, name: impl std::fmt::Display) -> Weights {
        Weights { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The same scope of a checkpoint that stores the weights of RMS norms as `weight - offset`.
    pub fn with_norm_offset(&self, norm_offset: f32) -> Weights {
        Weights { norm_offset, ..self.clone() }
    }

    pub fn has(&self, name: &str) -> bool {
        self.store.index.contains_key(&self.path(name))
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
        if let Some(tensor) = self.store.index.get(&self.path(name)) {
            tensor.used.set(true);
        }
    }

    /// Checks that nothing of the checkpoint was left over: a model that computes without one of its tensors computes
    /// something else.
    ///
    /// # Errors
    /// Names tensors that nobody asked for.
    pub fn all_used(&self) -> Result<()> {
        let unused = self.store.index.iter().filter(|(_, tensor)| !tensor.used.get());
        let unused: BTreeSet<&str> = unused.map(|(_, tensor)| &*tensor.stored).collect();
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
            self.made_up(&self.path(name), &array);
            return Ok(array);
        }
        self.check_shape(name, shape)?;
        let tensor = self.locate(name)?;
        self.fill(shape, tensor.dtype, |bytes| self.read(tensor, bytes))
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
        let weight = self.matrix(Place::One(name), &[outputs, inputs])?;
        self.layer(weight, self.bias(name, outputs, bias)?)
    }

    /// What a mixture of experts chooses by, `[experts, inputs]`, with a bias if `bias`. Its
    /// products are never rounded: the smallest difference may choose another expert, whose output
    /// is another altogether.
    pub fn router(&self, name: &str, experts: i32, inputs: i32, bias: bool) -> Result<Linear> {
        let weight = self.matrix(Place::One(name), &[experts, inputs])?;
        Ok(Linear::unrounded(weight, self.bias(name, experts, bias)?))
    }

    fn bias(&self, name: &str, outputs: i32, there: bool) -> Result<Option<Array>> {
        let read = || Ok(self.cast(self.sub(name).float_tensor("bias", &[outputs])?));
        there.then(read).transpose()
    }

    /// In the order in which kernels read it, unless nothing is read: then there are only shapes.
    fn layer(&self, weight: Matrix, bias: Option<Array>) -> Result<Linear> {
        let shapes = self.store.random.is_none() && self.store.files.borrow().is_empty();
        if shapes { Ok(Linear::new(weight, bias)) } else { Ok(Linear::packed(weight, bias)?) }
    }

    /// An embedding table `[vocab_size, hidden_size]`.
    pub fn embedding(&self, name: &str, vocab_size: i32, hidden_size: i32) -> Result<Embedding> {
        let table = self.layer(self.matrix(Place::One(name), &[vocab_size, hidden_size])?, None)?;
        Ok(Embedding::new(table, vocab_size, self.store.types.activations))
    }

    /// `count` matrices `[outputs, inputs]` under one name, stored stacked (`experts.up_proj.weight`) or one by one
    /// (`experts.7.up_proj.weight`): `stack("experts", "up_proj", ..)`.
    pub fn stack(&self, of: &str, name: &str, count: i32, outputs: i32, inputs: i32) -> Result<Stack> {
        let stacked = format!("{of}.{name}");
        let one_by_one = ["weight", "scales"].iter().any(|part| self.has(&format!("{of}.0.{name}.{part}")));
        let place = if one_by_one { Place::Each { of, name, count } } else { Place::One(&stacked) };
        Ok(Stack::new(self.matrix(place, &[count, outputs, inputs])?))
    }

    /// `count` matrices `[outputs, inputs]` stored as one tensor.
    pub fn stacked(&self, name: &str, count: i32, outputs: i32, inputs: i32) -> Result<Stack> {
        Ok(Stack::new(self.matrix(Place::One(name), &[count, outputs, inputs])?))
    }

    /// An RMS norm with a weight `[size]`, in float32, to which the [offset](Weights::with_norm_offset) is added.
    pub fn rms_norm(&self, name: &str, size: i32, eps: f32) -> Result<RmsNorm> {
        let weight = self.sub(name).float32("weight", &[size])?;
        Ok(RmsNorm::new(if self.norm_offset == 0.0 { weight } else { weight + self.norm_offset }, eps))
    }

    /// A depthwise convolution `[channels, width]`: `[channels, 1, width]` in the hub, `[channels, width, 1]` in MLX.
    pub fn conv1d(&self, name: &str, channels: i32, width: i32) -> Result<Array> {
        let name = format!("{name}.weight");
        let shape = match self.shape(&name)?.get(1) {
            Some(1) => [channels, 1, width],
            _ => [channels, width, 1],
        };
        Ok(self.cast(self.float_tensor(&name, &shape)?).reshape(&[channels, width]))
    }

    /// Floating-point values of a matrix or a stack of them, dequantised if need be.
    pub fn dense(&self, name: &str, shape: &[i32]) -> Result<Array> {
        match self.matrix(Place::One(name), shape)? {
            Matrix::Dense(weight) => Ok(weight),
            // As exact as float32 scales allow; such matrices are small.
            Matrix::Quantized(matrix) => {
                Ok(matrix.dequantize(self.store.types.weights.unwrap_or(Dtype::Float32)))
            }
        }
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
        if !self.store.files.borrow().is_empty() || self.store.random.is_some() {
            mlx::eval([&array])?;
        }
        Ok(array)
    }

    /// A new array filled by `read`; zeros that never take memory if the checkpoint is only described.
    fn fill(
        &self,
        shape: &[i32],
        dtype: Dtype,
        read: impl FnOnce(&mut [u8]) -> mlx::Result<()>,
    ) -> Result<Array> {
        if self.store.files.borrow().is_empty() {
            return Ok(Array::full(shape, 0.0, dtype));
        }
        Ok(Array::fill_with(shape, dtype, read)?)
    }

    fn read(&self, tensor: &Tensor, bytes: &mut [u8]) -> mlx::Result<()> {
        self.store.files.borrow_mut()[tensor.file].read_bytes(&tensor.stored, bytes)?;
        self.store.loaded.borrow_mut().advance(bytes.len());
        Ok(())
    }

    /// Counts an array that was made up.
    fn made_up(&self, path: &str, array: &Array) {
        self.store.stats.borrow_mut().add(path, array.dtype(), array.shape());
        self.store.loaded.borrow_mut().advance(array.size() * array.dtype().size());
    }

    fn find(&self, name: &str) -> Result<&Tensor> {
        let path = self.path(name);
        self.store.index.get(&path).ok_or(LoadError::MissingTensor(path))
    }

    /// The tensor's place, from now on counted as used.
    fn locate(&self, name: &str) -> Result<&Tensor> {
        let tensor = self.find(name)?;
        tensor.used.set(true);
        self.store.stats.borrow_mut().add(&self.path(name), tensor.dtype, &tensor.shape);
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
