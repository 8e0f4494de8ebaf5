//! Logits with a limit.

use mlx::{Array, apply};

use super::values::{dispatch, like};

#[track_caller]
pub(crate) fn softcap(x: &Array, cap: f32) -> Array {
    let [out] = apply("softcap", &[x], [like(x, x.shape())], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => {
            kernels::softcap::<T>(inputs[0].values(), outputs[0].values(), cap)
        })
    });
    out
}
