//! Tensors by path, with their shapes checked; the only place that knows how weights are stored.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use mlx::{Array, Dtype, load::Safetensors, quant::Quantization};

use crate::{
    error::{LoadError, Result},
    nn::{Embedding, Linear, Matrix, RmsNorm},
};

/// A scope of a checkpoint: `weights.sub("layers").sub(3)` sees the tensors below `layers.3.`.
pub struct Weights {
    store: Rc<Store>,
    prefix: String,
}

struct Store {
    files: RefCell<Vec<Safetensors>>,
    /// Canonical name to the file that holds it and its name there.
    index: HashMap<String, (usize, String)>,
    dtype: Option<Dtype>,
    loaded: RefCell<Loaded>,
}

struct Loaded {
    bytes: usize,
    total: usize,
    progress: Box<dyn FnMut(usize, usize)>,
}

impl Weights {
    /// `sanitize` turns a checkpoint's names into canonical ones, or drops them (`None`). `dtype` converts
    /// floating-point tensors where the device needs weights in the activations' type.
    pub fn new(
        files: Vec<Safetensors>,
        sanitize: fn(&str) -> Option<String>,
        dtype: Option<Dtype>,
        progress: Box<dyn FnMut(usize, usize)>,
    ) -> Weights {
        let mut index = HashMap::new();
        let mut total = 0;
        for (i, file) in files.iter().enumerate() {
            for name in file.names() {
                if let Some(canonical) = sanitize(&name) {
                    total += file.bytes_of(&name);
                    index.insert(canonical, (i, name));
                }
            }
        }
        let loaded = RefCell::new(Loaded { bytes: 0, total, progress });
        Weights {
            store: Rc::new(Store { files: RefCell::new(files), index, dtype, loaded }),
            prefix: String::new(),
        }
    }

    pub fn sub(&self, name: impl std::fmt::Display) -> Weights {
        Weights { store: self.store.clone(), prefix: format!("{}{name}.", self.prefix) }
    }

    pub fn has(&self, name: &str) -> bool {
        self.store.index.contains_key(&self.path(name))
    }

    /// Bytes of all tensors read so far, as stored.
    pub fn loaded_bytes(&self) -> usize {
        self.store.loaded.borrow().bytes
    }

    /// Reads a tensor of the given shape, as stored.
    ///
    /// # Errors
    /// It is missing or has another shape: the error names it.
    pub fn tensor(&self, name: &str, shape: &[i32]) -> Result<Array> {
        let array = self.read(name)?;
        if array.shape() == shape {
            return Ok(array);
        }
        Err(LoadError::WrongShape {
            name: self.path(name),
            found: array.shape().to_vec(),
            expected: shape.to_vec(),
        })
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

    /// Shape of a tensor, without reading it.
    ///
    /// # Errors
    /// It is missing.
    pub fn shape(&self, name: &str) -> Result<Vec<usize>> {
        let (file, stored) = self.locate(name)?;
        Ok(self.store.files.borrow()[file].shape(&stored).unwrap_or_default().to_vec())
    }

    /// A linear layer `[outputs, inputs]` without bias, quantised if the checkpoint holds scales for it.
    pub fn linear(&self, name: &str, outputs: i32, inputs: i32) -> Result<Linear> {
        Ok(Linear::new(self.sub(name).matrix(outputs, inputs)?))
    }

    /// An embedding table `[vocab_size, hidden_size]`; activations take `dtype`, or else the table's type.
    pub fn embedding(
        &self,
        name: &str,
        vocab_size: i32,
        hidden_size: i32,
        dtype: Option<Dtype>,
    ) -> Result<Embedding> {
        Ok(Embedding::new(self.sub(name).matrix(vocab_size, hidden_size)?, dtype))
    }

    /// A norm's weight `[size]`; `offset` is added to it, in float32, where a checkpoint stores `weight - offset`.
    pub fn rms_norm(&self, name: &str, size: i32, eps: f32, offset: f32) -> Result<RmsNorm> {
        let weight = self.sub(name).float_tensor("weight", &[size])?.astype(Dtype::Float32);
        Ok(RmsNorm::new(if offset == 0.0 { weight } else { weight + offset }, eps))
    }

    fn matrix(&self, rows: i32, columns: i32) -> Result<Matrix> {
        if !self.has("scales") {
            let weight = self.tensor("weight", &[rows, columns])?;
            if !weight.dtype().is_float() {
                return Err(self.bad("weight", "it is quantised but has no scales".into()));
            }
            return Ok(Matrix::Dense(self.cast(weight)));
        }
        let quantization = self.quantization(columns)?;
        let groups = columns / quantization.group_size;
        let codes = self.tensor("weight", &[rows, columns * quantization.bits / 32])?;
        let [scales, biases] =
            [self.tensor("scales", &[rows, groups])?, self.tensor("biases", &[rows, groups])?];
        if codes.dtype() != Dtype::Uint32 || !scales.dtype().is_float() || !biases.dtype().is_float() {
            return Err(self.bad("weight", "it is not in MLX's affine format, the only one supported".into()));
        }
        Ok(Matrix::Affine { codes, scales: self.cast(scales), biases: self.cast(biases), quantization })
    }

    /// Bits and group size follow from the shapes once the number of inputs is known, as in mlx-lm; config.json's
    /// map may be incomplete, the shapes cannot be.
    fn quantization(&self, columns: i32) -> Result<Quantization> {
        let (codes, scales) = (self.shape("weight")?, self.shape("scales")?);
        let last = |shape: &[usize]| shape.last().map_or(0, |&n| n as i32);
        let (bits, group_size) = (last(&codes) * 32 / columns, columns / last(&scales).max(1));
        if [2, 3, 4, 5, 6, 8].contains(&bits) && [32, 64, 128].contains(&group_size) {
            return Ok(Quantization { group_size, bits });
        }
        Err(self.bad(
            "weight",
            format!(
                "for {columns} inputs its shape {codes:?} and its scales' {scales:?} mean {bits} bits in groups of \
                 {group_size}; 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128 are supported"
            ),
        ))
    }

    fn read(&self, name: &str) -> Result<Array> {
        let (file, stored) = self.locate(name)?;
        let array = self.store.files.borrow_mut()[file].read(&stored)?;
        let loaded = &mut *self.store.loaded.borrow_mut();
        loaded.bytes += array.size() * array.dtype().size();
        (loaded.progress)(loaded.bytes.min(loaded.total), loaded.total);
        Ok(array)
    }

    /// The file that holds a tensor, and its name there.
    fn locate(&self, name: &str) -> Result<(usize, String)> {
        let path = self.path(name);
        self.store.index.get(&path).cloned().ok_or(LoadError::MissingTensor(path))
    }

    fn cast(&self, array: Array) -> Array {
        match self.store.dtype {
            Some(dtype) => array.astype(dtype),
            None => array,
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn bad(&self, name: &str, message: String) -> LoadError {
        LoadError::BadTensor { name: self.path(name), message }
    }
}
