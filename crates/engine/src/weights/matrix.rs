//! Matrices and stacks of them in each stored format: dense, or MLX's quantised ones.

use mlx::{
    Array, Dtype,
    quant::{Mode, Quantization, Quantized},
};

use super::{Random, Tensor, Weights};
use crate::{error::Result, nn::Matrix};

/// Where the parts (`weight`, `scales`, `biases`) of a matrix or a stack lie.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// One tensor for each part.
    One(&'a str),
    /// One tensor for each part of each of `count` matrices.
    Each { of: &'a str, name: &'a str, count: i32 },
}

impl Place<'_> {
    /// The tensor that holds a part, or the first of those.
    fn first(&self, part: &str) -> String {
        self.nth(0, part)
    }

    fn nth(&self, i: i32, part: &str) -> String {
        match self {
            Place::One(name) => format!("{name}.{part}"),
            Place::Each { of, name, .. } => format!("{of}.{i}.{name}.{part}"),
        }
    }
}

impl Weights {
    /// A matrix `[outputs, inputs]`, or a stack of them with their number in front.
    pub(super) fn matrix(&self, place: Place, shape: &[i32]) -> Result<Matrix> {
        let (inputs, rows) = (shape[shape.len() - 1], &shape[..shape.len() - 1]);
        let with_last = |last: i32| [rows, &[last]].concat();
        let weight = place.first("weight");
        if let Some(random) = self.store.random {
            return self.random_matrix(random, place, shape);
        }
        if !self.has(&place.first("scales")) {
            self.store
                .quantization_config
                .check(&self.stored(&weight), None)
                .map_err(|e| self.bad(&weight, e))?;
            let values = self.part(place, "weight", shape)?;
            if !values.dtype().is_float() {
                return Err(self.bad(&weight, "it is quantised but has no scales".into()));
            }
            return Ok(Matrix::Dense(self.cast(values)));
        }
        let quantization = self.quantization(place, inputs)?;
        self.store
            .quantization_config
            .check(&self.stored(&weight), Some(quantization))
            .map_err(|e| self.bad(&weight, e))?;
        let groups = inputs / quantization.group_size;
        self.count(shape, quantization);
        let codes = self.part(place, "weight", &with_last(inputs * quantization.bits / 32))?;
        if codes.dtype() != Dtype::Uint32 {
            return Err(
                self.bad(&weight, format!("it has scales but is {}, not uint32", codes.dtype().name()))
            );
        }
        let scales = self.part(place, "scales", &with_last(groups))?;
        let (scales, biases) = match quantization.mode {
            Mode::Affine => {
                let biases = self.part(place, "biases", &with_last(groups))?;
                if !scales.dtype().is_float() || biases.dtype() != scales.dtype() {
                    return Err(
                        self.bad(&weight, "its scales and biases are not of one floating-point type".into())
                    );
                }
                (self.cast(scales), Some(self.cast(biases)))
            }
            _ => (scales, None),
        };
        Ok(Matrix::Quantized(Quantized { codes, scales, biases, quantization }))
    }

    fn random_matrix(&self, random: Random, place: Place, shape: &[i32]) -> Result<Matrix> {
        // A stack is made up as MLX stores it: whole.
        let name = match place {
            Place::One(name) => name.to_owned(),
            Place::Each { of, name, .. } => format!("{of}.{name}"),
        };
        let path = self.path(&name);
        let matrix = random.matrix(&path, shape)?;
        let made_up = |part: &str, array: &Array| self.made_up(&format!("{path}.{part}"), array);
        match &matrix {
            Matrix::Dense(weight) => made_up("weight", weight),
            Matrix::Quantized(Quantized { codes, scales, biases, quantization }) => {
                self.count(shape, *quantization);
                made_up("weight", codes);
                made_up("scales", scales);
                biases.iter().for_each(|biases| made_up("biases", biases));
            }
        }
        Ok(self.converted(matrix))
    }

    fn count(&self, shape: &[i32], quantization: Quantization) {
        let parameters = shape.iter().map(|&dim| dim as usize).product();
        self.store.stats.borrow_mut().quantized(parameters, quantization);
    }

    /// With floating-point values in the type that the device wants.
    fn converted(&self, matrix: Matrix) -> Matrix {
        let cast = |array: Array| if array.dtype().is_float() { self.cast(array) } else { array };
        match matrix {
            Matrix::Dense(weight) => Matrix::Dense(cast(weight)),
            Matrix::Quantized(Quantized { codes, scales, biases, quantization }) => {
                Matrix::Quantized(Quantized {
                    codes,
                    scales: cast(scales),
                    biases: biases.map(cast),
                    quantization,
                })
            }
        }
    }

    /// Format, bits and group size follow from the shapes once the number of inputs is known, as in mlx-lm; config.json's
    /// map may be incomplete, the shapes cannot be.
    fn quantization(&self, place: Place, inputs: i32) -> Result<Quantization> {
        let (weight, scales) = (place.first("weight"), place.first("scales"));
        let (code_shape, scale_shape) = (self.shape(&weight)?, self.shape(&scales)?);
        let last = |shape: &[i32]| shape.last().copied().unwrap_or(0);
        let bits = (i64::from(last(&code_shape)) * 32 / i64::from(inputs)) as i32;
        let group_size = inputs / last(&scale_shape).max(1);
        if self.dtype(&scales)?.is_float() {
            if [2, 3, 4, 5, 6, 8].contains(&bits) && [32, 64, 128].contains(&group_size) {
                return Ok(Quantization { mode: Mode::Affine, group_size, bits });
            }
        } else if let Some(fixed) = Mode::ALL
            .into_iter()
            .filter_map(Mode::fixed)
            .find(|q| (q.bits, q.group_size) == (bits, group_size))
        {
            return Ok(fixed);
        }
        Err(self.bad(
            &weight,
            format!(
                "for {inputs} inputs its shape {code_shape:?} and its scales' {scale_shape:?} mean {bits} bits in groups \
                 of {group_size}; supported are affine 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, mxfp4, mxfp8 \
                 and nvfp4"
            ),
        ))
    }

    /// One part of a matrix; the parts of a stack stored one by one are read straight into one array.
    fn part(&self, place: Place, part: &str, shape: &[i32]) -> Result<Array> {
        let Place::Each { count, .. } = place else { return self.tensor(&place.first(part), shape) };
        let first = place.first(part);
        let dtype = self.dtype(&first)?;
        for i in 0..count {
            let name = place.nth(i, part);
            self.check_shape(&name, &shape[1..])?;
            if self.dtype(&name)? != dtype {
                return Err(self.bad(&name, format!("its type is not that of {first}")));
            }
        }
        let tensors: Vec<&Tensor> =
            (0..count).map(|i| self.locate(&place.nth(i, part))).collect::<Result<_>>()?;
        let size = shape[1..].iter().map(|&d| d as usize).product::<usize>() * dtype.size();
        self.fill(shape, dtype, |bytes| {
            let mut each = tensors.iter().zip(bytes.chunks_exact_mut(size));
            each.try_for_each(|(tensor, bytes)| self.read(tensor, bytes))
        })
    }

    /// Uint32 words of 4-bit codes stored as bytes, four to a word: `[.., bytes / 4]` for `[.., bytes]`.
    pub fn words(&self, name: &str, shape: &[i32]) -> Result<Array> {
        self.check_shape(name, shape)?;
        if self.dtype(name)? != Dtype::Uint8 {
            return Err(self.bad(name, format!("it is {}, not bytes", self.dtype(name)?.name())));
        }
        let tensor = self.locate(name)?;
        Mode::Mxfp4.fixed().into_iter().for_each(|q| self.count(&[shape, &[2]].concat(), q));
        let mut words = shape.to_vec();
        if let Some(last) = words.last_mut() {
            *last /= 4;
        }
        self.fill(&words, Dtype::Uint32, |bytes| self.read(tensor, bytes))
    }

    fn dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.find(name)?.dtype)
    }

    /// The name a tensor has in its file, or would have.
    fn stored(&self, name: &str) -> String {
        let path = self.path(name);
        self.store.index.get(&path).map_or(path, |tensor| tensor.stored.clone())
    }
}
