//! RMS norm.

use kernels::cuda::OperationKind;
use mlx::{Array, cuda::Arguments};

use super::{
    super::cpu,
    launch::{empty, is_f32, launch, resident, resident_f32},
    persistent::{self, queue},
};
use crate::RmsNorm;

/// A row longer than this does not fit into a block's memory.
const MAX_ROW: i32 = 12_000;

#[track_caller]
pub(crate) fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    assert_eq!(weight.shape(), &x.shape()[x.ndim() - 1..], "norm weight for {:?}", x.shape());
    let size = weight.dim(0);
    if !is_f32(x) || x.size() == 0 || size > MAX_ROW {
        return cpu::rms_norm(x, weight, eps);
    }
    let (x, weight, out) = (resident(x), resident_f32(weight), empty(x.shape()));
    let arguments = Arguments::new()
        .with(x.device_address())
        .with(weight.device_address())
        .with(out.device_address())
        .with(size)
        .with(eps);
    if x.size() == size as usize && persistent::is_allowed() {
        queue("rms_norm", OperationKind::RmsNorm, arguments);
        return out;
    }
    launch("rms_norm", [x.size() / size as usize, 1, 1], 256, size as usize * 4, arguments);
    out
}

impl RmsNorm {
    /// The weight on the device, in float32.
    #[track_caller]
    pub(super) fn device_weight(&self) -> &Array {
        self.device_weight.get_or_init(|| resident_f32(&self.weight).into_owned())
    }
}
