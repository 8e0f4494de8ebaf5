//! Linear layer.

use std::{cell::OnceCell, sync::Arc};

use mlx::{Array, Dtype, Result};

use crate::{
    Matrix, RmsNorm,
    backend::{cpu::PreparedLinear, on_backend},
    storage::WeightStorage,
};

/// `x · weightᵀ + bias`.
pub struct Linear {
    pub(crate) weight: WeightStorage,
    /// `[outputs]`.
    pub(crate) bias: Option<Array>,
    /// Whether products on the CPU are in float32 whatever the thread's precision.
    pub(crate) unrounded: bool,
    prepared: OnceCell<Arc<PreparedLinear>>,
    /// The bias in a GPU's memory.
    pub(crate) device_bias: OnceCell<Array>,
}

impl Linear {
    pub fn new(weight: Matrix, bias: Option<Array>) -> Linear {
        Linear::with_storage(WeightStorage::Plain(weight), bias)
    }

    /// A layer whose products on the CPU and by our kernels on a GPU are in
    /// [`Precision::Float32`](crate::Precision::Float32) whatever the thread's precision: for
    /// routers, where a small difference becomes a large one.
    ///
    /// # Errors
    /// The weight cannot be evaluated, or memory is exhausted.
    pub fn unrounded(weight: Matrix, bias: Option<Array>) -> Result<Linear> {
        Ok(Linear { unrounded: true, ..Linear::with_storage(WeightStorage::unrounded(weight)?, bias) })
    }

    /// A layer whose weight, if it is affine, is rearranged into the order in which kernels of the
    /// CPU or an NVIDIA GPU read it. Products are then faster, but impossible in
    /// [`Precision::Float32`](crate::Precision::Float32). The result takes no more memory than the
    /// weight, but both exist for a moment.
    ///
    /// # Errors
    /// The weight cannot be evaluated, or memory is exhausted.
    pub fn prepacked(weight: Matrix, bias: Option<Array>) -> Result<Linear> {
        Ok(Linear::with_storage(WeightStorage::prepacked(weight)?, bias))
    }

    fn with_storage(weight: WeightStorage, bias: Option<Array>) -> Linear {
        Linear { weight, bias, unrounded: false, prepared: OnceCell::new(), device_bias: OnceCell::new() }
    }

    /// `[.., inputs]` to `[.., outputs]`, in `x`'s type. On the CPU each output row depends on its
    /// input row alone, bit for bit.
    #[track_caller]
    pub fn forward(&self, x: &Array) -> Array {
        let [out] = project(x, None, [self]);
        out
    }

    /// Rows `indices` (uint32 `[n]`) of the weight, as `dtype` or in the type they are stored in.
    #[track_caller]
    pub fn rows(&self, indices: &Array, dtype: Option<Dtype>) -> Array {
        on_backend!(rows(self, indices, dtype))
    }

    /// The weights as CPU kernels take them, built on first use.
    #[track_caller]
    pub(crate) fn prepared(&self) -> Arc<PreparedLinear> {
        self.prepared.get_or_init(|| Arc::new(PreparedLinear::new(self))).clone()
    }
}

/// `linear(norm(x))` of linear layers that share their input `x` `[.., inputs]`.
#[track_caller]
pub(crate) fn project<const N: usize>(
    x: &Array,
    norm: Option<&RmsNorm>,
    linears: [&Linear; N],
) -> [Array; N] {
    let outs = on_backend!(project(x, norm, &linears));
    outs.try_into().unwrap_or_else(|_| unreachable!("one output for each of {N} layers"))
}
