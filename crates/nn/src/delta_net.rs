//! Gated DeltaNet of a batch: everything between its input projections and its output norm.

use std::{cell::OnceCell, sync::Arc};

use mlx::Array;

use crate::{
    Recurrence, RmsNorm,
    backend::{
        cpu::PreparedDeltaNet,
        cuda::{DeviceDeltaNet, DeviceHeads},
        on_backend,
    },
};

/// Convolution, norms, gates and delta rule of one layer (Yang et al., "Gated Delta Networks",
/// 2024).
pub struct DeltaNet {
    pub(crate) heads: DeltaHeads,
    pub(crate) weights: DeltaWeights,
    prepared: OnceCell<Arc<PreparedDeltaNet>>,
    on_device: OnceCell<DeviceDeltaNet>,
}

#[derive(Clone, Copy, Debug)]
pub struct DeltaHeads {
    pub key_heads: i32,
    pub value_heads: i32,
    pub key_dim: i32,
    pub value_dim: i32,
}

pub struct DeltaWeights {
    /// `[channels, width]`; channels are those of queries, keys and values, in this order.
    pub conv1d: Array,
    /// `-exp(A_log)`, float32 `[value_heads]`.
    pub neg_exp_a: Array,
    /// Float32 `[value_heads]`.
    pub dt_bias: Array,
    /// Norms of each query and each key head.
    pub norms: [RmsNorm; 2],
}

/// One sequence's part of a step, and its recurrent state.
pub struct DeltaRow<'a> {
    pub tokens: i32,
    /// The last of those, which may be [rewound](Recurrence::rewind).
    pub num_draft: i32,
    pub state: &'a mut Recurrence,
}

impl DeltaNet {
    pub fn new(heads: DeltaHeads, weights: DeltaWeights) -> DeltaNet {
        DeltaNet { heads, weights, prepared: OnceCell::new(), on_device: OnceCell::new() }
    }

    /// `qkv` `[tokens, channels]`, `b` and `a` `[tokens, value_heads]`; returns
    /// `[tokens, value_heads * value_dim]`.
    ///
    /// On the CPU each row of the result depends on its own sequence alone, bit for bit.
    #[track_caller]
    pub fn forward(&self, qkv: &Array, b: &Array, a: &Array, rows: &mut [DeltaRow]) -> Array {
        on_backend!(delta_net(self, qkv, [b, a], rows))
    }

    /// The parameters as CPU kernels take them, built on first use.
    #[track_caller]
    pub(crate) fn prepared(&self) -> Arc<PreparedDeltaNet> {
        self.prepared.get_or_init(|| Arc::new(PreparedDeltaNet::new(self))).clone()
    }

    /// The parameters on a GPU, built on first use.
    #[track_caller]
    pub(crate) fn on_device(&self) -> &DeviceDeltaNet {
        let DeltaWeights { conv1d, neg_exp_a, dt_bias, norms } = &self.weights;
        let make = || DeviceDeltaNet::new(self.heads.on_device(), [conv1d, neg_exp_a, dt_bias], norms);
        self.on_device.get_or_init(make)
    }
}

impl DeltaHeads {
    /// Numbers in all keys, or in all queries, of a token.
    pub(crate) fn key_width(&self) -> i32 {
        self.key_heads * self.key_dim
    }

    /// The sizes as GPU kernels take them, where heads of keys and of values have one size.
    pub(crate) fn on_device(&self) -> DeviceHeads {
        DeviceHeads { key_heads: self.key_heads, value_heads: self.value_heads, dim: self.key_dim }
    }

    pub(crate) fn value_width(&self) -> i32 {
        self.value_heads * self.value_dim
    }
}

/// Gated delta rule (Yang et al., "Gated Delta Networks", 2024), token by token.
///
/// `q`, `k` `[1, tokens, key_heads, key_dim]`; `v` `[1, tokens, value_heads, value_dim]`; `beta`
/// `[1, tokens, value_heads]`; the decay `g` likewise, or per channel
/// `[1, tokens, value_heads, key_dim]`; `state` `[1, value_heads, value_dim, key_dim]` in float32.
/// Returns the outputs, shaped and typed like `v`, and the state after the last token.
#[track_caller]
pub(crate) fn gated_delta(qkv: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
    on_backend!(gated_delta(qkv, g, beta, state))
}
