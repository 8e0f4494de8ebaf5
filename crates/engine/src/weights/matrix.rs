//! Matrices and stacks of them in each stored format: dense, or MLX's quantised ones.

use mlx::{
    Array, Dtype,
    quant::{Mode, Quantization, Quantized},
};
use nn::Matrix;

use super::{Random, Weights};
use crate::error::Result;

/// The tensors of a matrix; one that is not quantised has only the first.
const PARTS: [&str; 3] = ["weight", "scales", "biases"];

impl Weights {
    /// A matrix `[outputs, inputs]`, or a stack of them `[count, outputs, inputs]`.
    pub(super) fn matrix(&self, name: &str, shape: &[i32]) -> Result<Matrix> {
        Ok(self.stored_matrix(name, shape)?.in_kernel_groups())
    }

    fn stored_matrix(&self, name: &str, shape: &[i32]) -> Result<Matrix> {
        let (inputs, rows) = (shape[shape.len() - 1], &shape[..shape.len() - 1]);
        let with_last = |last: i32| [rows, &[last]].concat();
        let [weight, scales, biases] = PARTS.map(|part| format!("{name}.{part}"));
        if let Some(random) = self.store.random {
            return self.random_matrix(random, name, shape);
        }
        if !self.has(&scales) {
            self.check_declared(&weight, None)?;
            let values = self.tensor(&weight, shape)?;
            if !values.dtype().is_float() {
                return Err(self.bad(&weight, "it is quantised but has no scales".into()));
            }
            return Ok(Matrix::Dense(self.cast(values)));
        }
        let quantization = self.quantization(name, inputs)?;
        self.check_declared(&weight, Some(quantization))?;
        let groups = inputs / quantization.group_size;
        self.count(name, shape, quantization);
        let codes = self.tensor(&weight, &with_last(inputs * quantization.bits / 32))?;
        if codes.dtype() != Dtype::Uint32 {
            return Err(
                self.bad(&weight, format!("it has scales but is {}, not uint32", codes.dtype().name()))
            );
        }
        let scales = self.tensor(&scales, &with_last(groups))?;
        let (scales, biases) = match quantization.mode {
            Mode::Affine => {
                let biases = self.tensor(&biases, &with_last(groups))?;
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

    /// Compares a matrix's stored format with config.json's.
    fn check_declared(&self, weight: &str, found: Option<Quantization>) -> Result<()> {
        let Some(tensor) = self.store.tensors.get(&self.path(weight)) else { return Ok(()) };
        if tensor.packed.is_some() {
            return Ok(());
        }
        let stored = &tensor.recipe.sources[0];
        self.store.quantization_config.check(stored, found).map_err(|e| self.bad(weight, e))
    }

    fn random_matrix(&self, random: Random, name: &str, shape: &[i32]) -> Result<Matrix> {
        let path = self.path(name);
        let matrix = random.matrix(&path, shape)?;
        let count = |part: &str, array: &Array| self.store.count_generated(&format!("{path}.{part}"), array);
        match &matrix {
            Matrix::Dense(weight) => count("weight", weight),
            Matrix::Quantized(Quantized { codes, scales, biases, quantization }) => {
                self.count(name, shape, *quantization);
                count("weight", codes);
                count("scales", scales);
                biases.iter().for_each(|biases| count("biases", biases));
            }
        }
        Ok(self.converted(matrix))
    }

    fn count(&self, name: &str, shape: &[i32], quantization: Quantization) {
        let (path, parameters) = (self.path(name), shape.iter().map(|&dim| dim as usize).product());
        self.store.stats.borrow_mut().quantized(&path, parameters, quantization);
    }

    /// Casts floating-point parts to the type that the device needs.
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

    /// Infers the format from the shapes and the number of inputs, as mlx-lm does: config.json's
    /// map may be incomplete.
    fn quantization(&self, name: &str, inputs: i32) -> Result<Quantization> {
        let [weight, scales, _] = PARTS.map(|part| format!("{name}.{part}"));
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

    fn dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.find(name)?.dtype)
    }
}
