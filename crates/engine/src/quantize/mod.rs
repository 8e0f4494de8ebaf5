//! Quantises a checkpoint in chunks, on the CPU, so that bytes do not depend on the device. Runs no
//! model.

mod config;
mod error;
mod folder;
mod plan;
mod shards;
mod verify;

use std::{ops::ControlFlow, path::Path};

use mlx::Array;
pub use mlx::quant::{Mode, Quantization};

pub use self::{
    error::QuantizeError,
    plan::{Plan, PlannedTensor, quantization},
    verify::Deviation,
};
use self::{folder::PartialFolder, plan::StoredTensor, shards::Shards};
use crate::api::Progress;
pub use crate::weights::Action;

/// Largest weight file, in bytes.
pub const SHARD_BYTES: usize = 5 << 30;

/// Counts and sizes of a finished run.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeReport {
    /// Quantised tensors.
    pub quantized: usize,
    /// Tensors copied unquantised.
    pub skipped: usize,
    /// Bytes of all tensors in the source.
    pub source_bytes: usize,
    /// Bytes of all tensors in the result.
    pub bytes: usize,
    /// Safetensors files in the result.
    pub files: usize,
}

/// Called with the progress; can cancel.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

impl Plan {
    /// Writes the quantised checkpoint to the folder `out`, which appears when it is complete.
    /// Weight files are at most `shard_bytes` long, unless one tensor is longer.
    ///
    /// The same source and format give the same bytes.
    ///
    /// # Errors
    /// `out` exists, reading or writing fails, or `progress` cancelled; then no files are left.
    pub fn write(
        &mut self,
        out: &Path,
        shard_bytes: usize,
        progress: OnProgress,
    ) -> Result<QuantizeReport, QuantizeError> {
        nn::use_gpu(false)?;
        let partial = PartialFolder::create(out)?;
        let mut shards = Shards::create(&partial, self.stored(), shard_bytes)?;
        let mut steps = ByteProgress { done: 0, total: self.source_bytes(), progress };
        let (q, files) = (self.quantization, &mut self.files);
        for tensor in &self.tensors {
            let stored = tensor.stored(q);
            files.chunks(&tensor.recipe, |values, _| {
                let bytes = values.size() * values.dtype().size();
                write_chunk(&values, tensor.action, q, &stored, &mut shards)?;
                steps.advance(bytes)
            })?;
        }
        let bytes = shards.total();
        let (index, files) = shards.finish()?;
        partial.write_index(&index)?;
        self.companions.as_deref().map_or(Ok(()), |folder| partial.copy_companions(folder))?;
        partial.write_config(&self.result_config())?;
        partial.finish()?;
        let quantized = self.tensors.iter().filter(|tensor| tensor.action == Action::Quantize).count();
        let skipped = self.tensors.len() - quantized;
        Ok(QuantizeReport { quantized, skipped, source_bytes: self.source_bytes(), bytes, files })
    }
}

fn write_chunk(
    values: &Array,
    action: Action,
    q: Quantization,
    stored: &[StoredTensor],
    shards: &mut Shards,
) -> Result<(), QuantizeError> {
    if action != Action::Quantize {
        return shards.append(&stored[0].name, &values.to_bytes()?);
    }
    let quantized = nn::quantize(values, q);
    mlx::eval([&quantized.codes, &quantized.scales].into_iter().chain(&quantized.biases))?;
    let parts = [Some(&quantized.codes), Some(&quantized.scales), quantized.biases.as_ref()];
    for (part, stored) in parts.into_iter().flatten().zip(stored) {
        shards.append(&stored.name, &part.to_bytes()?)?;
    }
    Ok(())
}

/// Counts bytes for the progress bar.
struct ByteProgress<'a> {
    done: usize,
    total: usize,
    progress: OnProgress<'a>,
}

impl ByteProgress<'_> {
    fn advance(&mut self, bytes: usize) -> Result<(), QuantizeError> {
        // MLX caches freed memory for reuse, but the chunks differ in size.
        mlx::clear_cache()?;
        self.done += bytes;
        match (self.progress)(Progress { loaded_bytes: self.done, total_bytes: self.total }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(QuantizeError::Interrupted),
        }
    }
}
