//! Compares a quantised checkpoint with its source, tensor by tensor, as stored.

use std::path::Path;

use mlx::{Array, Dtype, quant::Quantized};

use super::{
    Action, ByteProgress, OnProgress, Plan, PlannedTensor, Quantization, QuantizeError, plan::StoredTensor,
};
use crate::{
    api::{Checkpoint, LoadError},
    weights::WeightFiles,
};

/// Difference of a tensor from its source.
#[derive(Clone, Debug)]
pub struct Deviation {
    /// Name of the tensor.
    pub name: String,
    /// Cosine similarity; 1 if both are equal.
    pub cosine: f64,
    /// Largest absolute difference.
    pub max_error: f64,
    /// Whether it was quantised, not copied.
    pub quantized: bool,
}

impl Plan {
    /// Compares the checkpoint in `out`, written by [`write`](Plan::write), with the source.
    ///
    /// # Errors
    /// A tensor is missing or unreadable, or `progress` cancelled.
    pub fn verify(&mut self, out: &Path, progress: OnProgress) -> Result<Vec<Deviation>, QuantizeError> {
        nn::use_gpu(false)?;
        let mut result = WeightFiles::new(Checkpoint::Folder(out.into()).weight_files()?)?;
        let mut steps = ByteProgress { done: 0, total: self.source_bytes(), progress };
        let mut deviations = Vec::new();
        for tensor in &self.tensors {
            let mut sums = Sums::default();
            let mut row = 0;
            let stored = tensor.stored(self.quantization);
            check_header(&stored, &result)?;
            self.files.chunks(&tensor.recipe, |values, _| {
                let rows = row..row + values.shape()[0] as usize;
                row = rows.end;
                let written = read_back(tensor, &stored, self.quantization, &mut result, rows)?;
                sums.add(&values.to_f32()?, &written.to_f32()?);
                steps.advance(values.size() * values.dtype().size())
            })?;
            deviations.push(sums.deviation(tensor));
        }
        Ok(deviations)
    }
}

fn check_header(stored: &[StoredTensor], result: &WeightFiles) -> Result<(), QuantizeError> {
    for tensor in stored {
        if result.shape(&tensor.name) != tensor.shape || result.dtype(&tensor.name)? != tensor.dtype {
            let message = "its shape or type is not what was written".into();
            return Err(LoadError::BadTensor { name: tensor.name.clone(), message }.into());
        }
    }
    Ok(())
}

/// Rows of a tensor of the result, dequantised.
fn read_back(
    tensor: &PlannedTensor,
    stored: &[StoredTensor],
    quantization: Quantization,
    result: &mut WeightFiles,
    rows: std::ops::Range<usize>,
) -> Result<Array, QuantizeError> {
    let mut part = |i: usize| {
        let StoredTensor { name, shape, .. } = &stored[i];
        result.rows(name, if shape.is_empty() { &[1] } else { shape }, rows.clone())
    };
    if tensor.action != Action::Quantize {
        return Ok(part(0)?);
    }
    let biases = if stored.len() > 2 { Some(part(2)?) } else { None };
    let quantized = Quantized { codes: part(0)?, scales: part(1)?, biases, quantization };
    Ok(quantized.dequantize(Dtype::Float32))
}

/// Sums over pairs of values, in float64.
#[derive(Default)]
struct Sums {
    product: f64,
    squares: [f64; 2],
    max_error: f64,
}

impl Sums {
    fn add(&mut self, source: &[f32], written: &[f32]) {
        for (&a, &b) in source.iter().zip(written) {
            let (a, b) = (f64::from(a), f64::from(b));
            self.product += a * b;
            self.squares[0] += a * a;
            self.squares[1] += b * b;
            let error = (a - b).abs();
            // NaN counts as the largest error.
            self.max_error = if error <= self.max_error { self.max_error } else { error };
        }
    }

    fn deviation(self, tensor: &PlannedTensor) -> Deviation {
        let norms = self.squares[0].sqrt() * self.squares[1].sqrt();
        let same = self.max_error == 0.0;
        let cosine = if same { 1.0 } else { self.product / norms };
        let (name, quantized) = (tensor.name.clone(), tensor.action == Action::Quantize);
        Deviation { name, cosine, max_error: self.max_error, quantized }
    }
}
