//! Logits with a limit.

use mlx::{Array, cuda::Arguments};

use super::{
    super::cpu,
    launch::{empty, is_f32, launch, resident},
};

#[track_caller]
pub(crate) fn softcap(x: &Array, cap: f32) -> Array {
    if !is_f32(x) || x.size() == 0 {
        return cpu::softcap(x, cap);
    }
    let (x, out) = (resident(x), empty(x.shape()));
    let arguments = Arguments::new()
        .with(x.device_address())
        .with(out.device_address())
        .with(out.size() as i32)
        .with(cap);
    launch("softcap", [out.size().div_ceil(256), 1, 1], 256, 0, arguments);
    out
}
