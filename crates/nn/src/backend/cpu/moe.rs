//! Choice of experts.

use mlx::{Array, Dtype, OutputSpec, apply};

use super::values::dispatch;

#[track_caller]
pub(crate) fn top_k(scores: &Array, k: i32) -> Array {
    let (rows, columns) = (scores.dim(0), scores.dim(1) as usize);
    let output = OutputSpec { shape: vec![rows, k], dtype: Dtype::Uint32 };
    let [out] = apply("top_k", &[scores], [output], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => {
            kernels::top_k::<T>(inputs[0].values(), columns, k as usize, outputs[0].values())
        })
    });
    out
}
