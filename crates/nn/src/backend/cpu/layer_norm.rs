//! Layer norm.

use mlx::{Array, apply};

use super::values::{dispatch, like};

#[track_caller]
pub(crate) fn layer_norm(x: &Array, [weight, bias]: [&Array; 2], eps: f32) -> Array {
    assert_eq!(weight.shape(), &x.shape()[x.ndim() - 1..], "norm weight for {:?}", x.shape());
    let [out] = apply("layer_norm", &[x, weight, bias], [like(x, x.shape())], move |inputs, outputs| {
        let parameters = [inputs[1].values(), inputs[2].values()];
        dispatch!(inputs[0].dtype(), T => {
            kernels::layer_norm::<T>(inputs[0].values(), parameters, outputs[0].values(), eps)
        })
    });
    out
}
