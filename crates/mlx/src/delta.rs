//! The recurrence of packed rows in a Gated DeltaNet layer, from projections to what the output norm takes.

use std::{cell::OnceCell, sync::Arc};

use crate::{
    Array, Recurrence, RmsNorm,
    fused::{self, DeltaParts},
    portable,
};

/// Convolution, norms, gates and delta rule of one layer (Yang et al., "Gated Delta Networks", 2024).
pub struct DeltaNet {
    pub(crate) heads: DeltaHeads,
    pub(crate) weights: DeltaWeights,
    parts: OnceCell<Arc<DeltaParts>>,
}

#[derive(Clone, Copy, Debug)]
pub struct DeltaHeads {
    pub key_heads: i32,
    pub value_heads: i32,
    pub key_dim: i32,
    pub value_dim: i32,
}

pub struct DeltaWeights {
    /// `[channels, width]`: queries before keys before values.
    pub conv1d: Array,
    /// `-exp(A_log)`, float32 `[value_heads]`.
    pub neg_exp_a: Array,
    /// Float32 `[value_heads]`.
    pub dt_bias: Array,
    /// Over each query and each key head.
    pub norms: [RmsNorm; 2],
}

/// One sequence's part of a step, and what it carries from token to token.
pub struct DeltaRow<'a> {
    pub tokens: i32,
    /// The last of them, which may have to be [forgotten](Recurrence::forget) again.
    pub ahead: i32,
    pub past: &'a mut Recurrence,
}

impl DeltaNet {
    pub fn new(heads: DeltaHeads, weights: DeltaWeights) -> DeltaNet {
        DeltaNet { heads, weights, parts: OnceCell::new() }
    }

    /// For our kernels.
    #[track_caller]
    pub(crate) fn parts(&self) -> Arc<DeltaParts> {
        self.parts.get_or_init(|| Arc::new(DeltaParts::of(self))).clone()
    }
}

impl DeltaHeads {
    /// Numbers of all keys, or all queries, of a token.
    pub(crate) fn keys(&self) -> i32 {
        self.key_heads * self.key_dim
    }

    pub(crate) fn values(&self) -> i32 {
        self.value_heads * self.value_dim
    }
}

/// Each row's tokens through convolution, norms, gates and delta rule: `qkv` `[tokens, channels]`, `b` and `a`
/// `[tokens, value_heads]`; returns `[tokens, value_heads * value_dim]`.
///
/// Each row of the result depends on its own sequence alone, bit for bit, on the CPU.
#[track_caller]
pub fn delta_net(qkv: &Array, b: &Array, a: &Array, rows: &mut [DeltaRow], net: &DeltaNet) -> Array {
    if !crate::on_gpu() {
        return fused::delta_net(qkv, b, a, rows, net);
    }
    portable::delta_net(qkv, b, a, rows, net)
}
