//! Root-mean-square norm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).

use std::{cell::OnceCell, sync::Arc};

use mlx::{Array, Dtype};

use crate::backend::{cpu::PreparedNorm, on_backend};

/// Root-mean-square norm over the last axis.
pub struct RmsNorm {
    /// `[size]`.
    pub(crate) weight: Array,
    pub(crate) eps: f32,
    prepared: OnceCell<Arc<PreparedNorm>>,
    /// The weight in a GPU's memory, in float32.
    pub(crate) device_weight: OnceCell<Array>,
}

impl RmsNorm {
    pub fn new(weight: Array, eps: f32) -> RmsNorm {
        RmsNorm { weight, eps, prepared: OnceCell::new(), device_weight: OnceCell::new() }
    }

    /// A norm without a weight.
    pub fn plain(size: i32, eps: f32) -> RmsNorm {
        RmsNorm::new(Array::full(&[size], 1.0, Dtype::Float32), eps)
    }

    /// `x * rsqrt(sum(x²) + eps)`, times `scale`: an RMS norm in which `size` moves from the mean
    /// into the weight.
    pub fn l2(size: i32, eps: f32, scale: f32) -> RmsNorm {
        let weight = scale * (size as f32).powf(-0.5);
        RmsNorm::new(Array::full(&[size], weight, Dtype::Float32), eps / size as f32)
    }

    /// Over the last axis, in `x`'s type.
    #[track_caller]
    pub fn forward(&self, x: &Array) -> Array {
        on_backend!(rms_norm(x, self))
    }

    /// The weight as CPU kernels take it, built on first use.
    #[track_caller]
    pub(crate) fn prepared(&self) -> Arc<PreparedNorm> {
        self.prepared.get_or_init(|| Arc::new(PreparedNorm::new(self))).clone()
    }
}
