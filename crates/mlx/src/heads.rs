//! Softmax attention of packed rows, from projections to what the output projection takes.

use std::{cell::OnceCell, sync::Arc};

use crate::{
    Array, Dtype, KvBuffer, RmsNorm, Softmax,
    fast::{self, Rope},
    fused::{self, HeadsParts},
    portable,
};

/// What happens to each head: norm, rotation, attention, gate.
pub struct Heads {
    pub(crate) heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) head_dim: i32,
    pub(crate) rope: Rope,
    pub(crate) norms: Option<[RmsNorm; 2]>,
    pub(crate) softmax: Softmax,
    pub(crate) gated: bool,
    parts: OnceCell<Arc<HeadsParts>>,
}

/// One sequence's part of a step, and its keys and values `[kv_heads, capacity, head_dim]`.
pub struct KvRow<'a> {
    pub tokens: i32,
    /// Tokens in the buffers.
    pub past: i32,
    /// Most keys a query sees, its own included.
    pub window: Option<i32>,
    pub keys: &'a mut KvBuffer,
    pub values: &'a mut KvBuffer,
}

impl Heads {
    /// Without norms and gates, scores scaled by `head_dim^-1/2`.
    pub fn new(heads: i32, kv_heads: i32, head_dim: i32, rope: Rope) -> Heads {
        let softmax = Softmax::scaled((head_dim as f32).powf(-0.5));
        Heads { heads, kv_heads, head_dim, rope, norms: None, softmax, gated: false, parts: OnceCell::new() }
    }

    /// With norms over each query and each key head, before they turn.
    pub fn with_norms(self, q_norm: RmsNorm, k_norm: RmsNorm) -> Heads {
        Heads { norms: Some([q_norm, k_norm]), ..self }
    }

    pub fn with_softmax(self, softmax: Softmax) -> Heads {
        Heads { softmax, ..self }
    }

    /// With a gate behind each head's query, as wide as that, whose sigmoid multiplies the head's output.
    pub fn with_gates(self) -> Heads {
        Heads { gated: true, ..self }
    }

    /// Keys and values `[tokens, kv_heads, head_dim]` as attention stores them, from projections
    /// `[tokens, kv_heads * head_dim]`: for tokens without a query.
    #[track_caller]
    pub fn keys_and_values(&self, [k, v]: [&Array; 2], positions: &Array) -> [Array; 2] {
        let [k, v] = [k, v].map(|x| x.reshape(&[-1, self.kv_heads, self.head_dim]));
        let k = self.norms.as_ref().map_or_else(|| k.clone(), |[_, k_norm]| k_norm.forward(&k));
        [fast::rope(&k, positions, &self.rope), v]
    }

    /// For our kernels.
    #[track_caller]
    pub(crate) fn parts(&self) -> Arc<HeadsParts> {
        self.parts.get_or_init(|| Arc::new(HeadsParts::of(self))).clone()
    }
}

impl KvRow<'_> {
    /// The buffers with room for the row's tokens.
    #[track_caller]
    pub(crate) fn reserve(&mut self, heads: &Heads, dtype: Dtype) -> [Array; 2] {
        let (length, kv_heads, dim) = (self.past + self.tokens, heads.kv_heads, heads.head_dim);
        [&mut self.keys, &mut self.values].map(|buffer| buffer.reserve(length, kv_heads, dim, dtype))
    }
}

/// Appends each row's keys and values to its buffers, then causal attention of its queries over all of them:
/// `q` `[tokens, heads * head_dim]`, twice as wide with gates; `k`, `v` `[tokens, kv_heads * head_dim]`; `positions`
/// int32 `[tokens]`. Returns `[tokens, heads * head_dim]`.
///
/// Each row of the result depends on its own query and the keys before it alone, bit for bit, on the CPU.
#[track_caller]
pub fn attend_heads(qkv: [&Array; 3], positions: &Array, rows: &mut [KvRow], heads: &Heads) -> Array {
    if !crate::on_gpu() {
        return fused::attend_heads(qkv, positions, rows, heads);
    }
    portable::attend_heads(qkv, positions, rows, heads)
}
