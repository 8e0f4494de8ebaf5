//! RMS norm.

use kernels::cuda::OperationKind;
use mlx::{Array, cuda::Arguments};

use super::{
    super::cpu,
    launch::{device, empty, is_f32, launch, resident, resident_f32},
    persistent::{self, queue},
};
use crate::RmsNorm;

/// A row longer than this does not fit into a block's memory.
const MAX_ROW: i32 = 12_000;

#[track_caller]
pub(crate) fn rms_norm(x: &Array, norm: &RmsNorm) -> Array {
    norm_and_add(x, norm, None)
}

/// `stream + norm(x)`, if there is a stream.
#[track_caller]
fn norm_and_add(x: &Array, norm: &RmsNorm, stream: Option<&Array>) -> Array {
    assert_eq!(norm.weight.shape(), &x.shape()[x.ndim() - 1..], "norm weight for {:?}", x.shape());
    let size = norm.weight.dim(0);
    if !is_f32(x) || x.size() == 0 || size > MAX_ROW {
        let normed = cpu::rms_norm(x, norm);
        return stream.map_or(normed.clone(), |stream| stream + normed);
    }
    let stream = stream.map(resident);
    let (x, weight, out) = (resident(x), norm.device_weight(), empty(x.shape()));
    let arguments = Arguments::new()
        .with(x.device_address())
        .with(weight.device_address())
        .with(stream.as_ref().map_or(0, |stream| stream.device_address()))
        .with(out.device_address())
        .with(size)
        .with(norm.eps);
    // Alone it takes less time as a kernel of its own.
    if x.size() == size as usize && persistent::is_allowed() && device().has_queued() {
        queue("rms_norm", OperationKind::RmsNorm, arguments);
        return out;
    }
    launch("rms_norm", [x.size() / size as usize, 1, 1], 256, size as usize * 4, arguments);
    out
}

/// `stream + norm(x)`.
#[track_caller]
pub(super) fn add_normed(stream: &Array, x: &Array, norm: &RmsNorm) -> Array {
    assert_eq!(stream.shape(), x.shape(), "a number of the stream for each");
    match is_f32(stream) {
        true => norm_and_add(x, norm, Some(stream)),
        false => stream + norm.forward(x),
    }
}

/// `silu(gate) * norm(x)`, the norm over each head of `x`.
#[track_caller]
pub(super) fn gated_norm(x: &Array, gate: &Array, norm: &RmsNorm) -> Array {
    assert_eq!(gate.shape(), x.shape(), "a gate for each value");
    let (x, gate, out) = (resident_f32(x), resident_f32(gate), empty(x.shape()));
    let dim = norm.weight.dim(0);
    let arguments = Arguments::new()
        .with(x.device_address())
        .with(gate.device_address())
        .with(norm.device_weight().device_address())
        .with(out.device_address())
        .with(dim)
        .with(norm.eps);
    launch("gated_norm", [out.size() / dim as usize, 1, 1], 32, 0, arguments);
    out
}

impl RmsNorm {
    /// The weight on the device, in float32.
    #[track_caller]
    pub(super) fn device_weight(&self) -> &Array {
        self.device_weight.get_or_init(|| resident_f32(&self.weight).into_owned())
    }
}
