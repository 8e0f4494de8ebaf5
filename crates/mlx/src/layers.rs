//! A linear layer and a norm, as fused operations take them: on the CPU their weights are handed to kernels once, not
//! as inputs of every operation, each of which costs MLX as much as a small product costs us.

use std::{cell::OnceCell, sync::Arc};

use crate::{
    Array, Dtype, Matrix, Result, fast,
    fused::{self, LinearParts, NormParts},
    packed::Stored,
};

/// `x · weightᵀ + bias`.
pub struct Linear {
    pub(crate) weight: Stored,
    /// `[outputs]`.
    pub(crate) bias: Option<Array>,
    /// Whether products on the CPU are in float32 whatever the thread's precision.
    pub(crate) unrounded: bool,
    parts: OnceCell<Arc<LinearParts>>,
}

impl Linear {
    pub fn new(weight: Matrix, bias: Option<Array>) -> Linear {
        Linear { weight: Stored::Plain(weight), bias, unrounded: false, parts: OnceCell::new() }
    }

    /// Products on the CPU are in [`Precision::Float32`](crate::Precision::Float32) whatever the
    /// thread's precision: for layers whose outputs decide something, where a small difference
    /// would become a large one.
    pub fn unrounded(weight: Matrix, bias: Option<Array>) -> Linear {
        Linear { unrounded: true, ..Linear::new(weight, bias) }
    }

    /// With its weight, if that is affine and the CPU computes, in the order in which our kernels read it: products in
    /// [`Precision::Rounded`](crate::Precision::Rounded) are faster, others impossible. It takes as much memory as before, and for
    /// a moment twice that.
    ///
    /// # Errors
    /// The weight cannot be evaluated, or memory is exhausted.
    pub fn packed(weight: Matrix, bias: Option<Array>) -> Result<Linear> {
        let weight = Stored::packed(weight)?;
        Ok(Linear { weight, bias, unrounded: false, parts: OnceCell::new() })
    }

    /// `[.., inputs]` to `[.., outputs]`, in `x`'s type.
    #[track_caller]
    pub fn forward(&self, x: &Array) -> Array {
        let [out] = fast::project(x, None, [self]);
        out
    }

    /// Rows `indices` (uint32 `[n]`) of the weight, as `dtype` or in the type they are stored in.
    #[track_caller]
    pub fn rows(&self, indices: &Array, dtype: Option<Dtype>) -> Array {
        let dtype = match &self.weight {
            Stored::Packed(weight) => dtype.or(Some(weight.floats())),
            Stored::Plain(_) => dtype,
        };
        let fused = dtype.filter(|_| !crate::on_gpu()).and_then(|dtype| fused::rows(self, indices, dtype));
        fused.unwrap_or_else(|| self.weight.rows(indices, dtype))
    }

    /// For our kernels.
    #[track_caller]
    pub(crate) fn parts(&self) -> Arc<LinearParts> {
        self.parts.get_or_init(|| Arc::new(LinearParts::of(self))).clone()
    }
}

/// Root-mean-square norm over the last axis.
pub struct RmsNorm {
    /// `[size]`.
    pub(crate) weight: Array,
    pub(crate) eps: f32,
    parts: OnceCell<Arc<NormParts>>,
}

impl RmsNorm {
    pub fn new(weight: Array, eps: f32) -> RmsNorm {
        RmsNorm { weight, eps, parts: OnceCell::new() }
    }

    /// A norm without a weight.
    pub fn plain(size: i32, eps: f32) -> RmsNorm {
        RmsNorm::new(Array::full(&[size], 1.0, Dtype::Float32), eps)
    }

    /// `x * rsqrt(sum(x²) + eps)`, times `scale`: an RMS norm in which `size` moves from the mean into the weight.
    pub fn l2(size: i32, eps: f32, scale: f32) -> RmsNorm {
        let weight = scale * (size as f32).powf(-0.5);
        RmsNorm::new(Array::full(&[size], weight, Dtype::Float32), eps / size as f32)
    }

    /// Over the last axis, in `x`'s type.
    #[track_caller]
    pub fn forward(&self, x: &Array) -> Array {
        fast::rms_norm(x, &self.weight, self.eps)
    }

    /// For our kernels.
    #[track_caller]
    pub(crate) fn parts(&self) -> Arc<NormParts> {
        self.parts.get_or_init(|| Arc::new(NormParts::of(self))).clone()
    }
}
