//! Gaussian error linear units.

use kernels::Gelu;
use mlx::{Array, apply};

use super::values::{dispatch, like};

#[track_caller]
pub(crate) fn gelu(x: &Array, kind: Gelu) -> Array {
    let [out] = apply(
        "gelu",
        &[x],
        [like(x, x.shape())],
        move |inputs, outputs| dispatch!(inputs[0].dtype(), T => kernels::gelu::<T>(inputs[0].values(), outputs[0].values(), kind)),
    );
    out
}
