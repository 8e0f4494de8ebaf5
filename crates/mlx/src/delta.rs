//! The recurrence of packed rows in a Gated DeltaNet layer, from projections to what the output norm takes.

use std::{cell::OnceCell, rc::Rc, sync::Arc};

use crate::{
    Array, Dtype, RmsNorm,
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
    /// The last inputs of the convolution, `[width - 1, channels]`; `None` before the first token.
    pub conv: &'a mut Option<Array>,
    pub state: &'a mut DeltaState,
}

/// The state of a delta rule, float32 `[1, value_heads, value_dim, key_dim]`; empty before the first token. Written in
/// place, unless a clone still holds what it was.
#[derive(Clone, Default)]
pub struct DeltaState(Option<Rc<Array>>);

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

impl DeltaRow<'_> {
    /// The convolution's past, zeros before the first token.
    #[track_caller]
    pub(crate) fn take_conv(&mut self, width: i32, x: &Array) -> Array {
        self.conv.take().unwrap_or_else(|| Array::zeros(&[width - 1, x.dim(1)], x.dtype()))
    }
}

impl DeltaState {
    /// The array behind the state, to be evaluated with a step.
    pub fn array(&self) -> Option<&Array> {
        self.0.as_deref()
    }

    /// A state that was read back.
    pub fn from_array(array: Option<Array>) -> DeltaState {
        DeltaState(array.map(Rc::new))
    }

    /// The state, zeros before the first token, and whether its memory may be written: nobody else holds it.
    #[track_caller]
    pub(crate) fn take(&mut self, shape: &[i32]) -> (Array, bool) {
        match self.0.take().map(Rc::try_unwrap) {
            Some(Ok(array)) => (array, true),
            Some(Err(shared)) => ((*shared).clone(), false),
            None => (Array::zeros(shape, Dtype::Float32), true),
        }
    }

    pub(crate) fn put(&mut self, array: Array) {
        self.0 = Some(Rc::new(array));
    }

    /// As [`fast::gated_delta`](crate::fast::gated_delta), continuing this state.
    #[track_caller]
    pub fn gated_delta(&mut self, [q, k, v]: [&Array; 3], g: &Array, beta: &Array) -> Array {
        let (state, _) = self.take(&[1, v.dim(2), v.dim(3), k.dim(3)]);
        let (out, state) = crate::fast::gated_delta([q, k, v], g, beta, &state);
        self.put(state);
        out
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
