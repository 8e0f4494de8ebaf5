//! Rotary position embedding.

use kernels::RopePositions;
use mlx::{Array, apply};

use super::values::{dispatch, like};
use crate::Rope;

#[track_caller]
pub(crate) fn rope(x: &Array, positions: &Array, rope: &Rope) -> Array {
    let (heads, head_dim) = (x.dim(1) as usize, x.dim(2) as usize);
    let Rope { frequencies, axes, pairs, scale } = rope.clone();
    let [out] = apply("rope", &[x, positions], [like(x, x.shape())], move |inputs, outputs| {
        let positions = RopePositions { values: inputs[1].values(), axes: &axes };
        dispatch!(inputs[0].dtype(), T => kernels::rope::<T, T>(
            inputs[0].values(), positions, &frequencies, pairs, scale, outputs[0].values(), heads, head_dim,
        ))
    });
    out
}
