//! Core attention of a batch: everything between the projections to queries, keys and values and
//! the output projection.

use std::{cell::OnceCell, ops::Range, sync::Arc};

use mlx::{Array, Dtype};

use crate::{
    KvBuffer, RmsNorm, Rope, Softmax,
    backend::{cpu::PreparedAttention, cuda::DeviceAttention, on_backend},
    rope,
};

/// Norm, rotation, attention and gate of each head.
pub struct CoreAttention {
    pub(crate) heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) head_dim: i32,
    pub(crate) rope: Rope,
    /// Norms of queries and of keys.
    pub(crate) qk_norm: Option<[RmsNorm; 2]>,
    pub(crate) softmax: Softmax,
    pub(crate) output_gate: bool,
    images_together: bool,
    prepared: OnceCell<Arc<PreparedAttention>>,
    on_device: OnceCell<DeviceAttention>,
}

/// One sequence's part of a step, and its keys and values `[kv_heads, capacity, head_dim]`.
pub struct KvRow<'a> {
    pub tokens: i32,
    /// Tokens in the buffers before this step.
    pub past: i32,
    /// Most keys a query sees, its own included.
    pub window: Option<i32>,
    /// Runs of the row's tokens that attend to those after them too: images.
    pub images: &'a [Range<i32>],
    pub keys: &'a mut KvBuffer,
    pub values: &'a mut KvBuffer,
}

impl CoreAttention {
    /// Without norms and gates, scores scaled by `head_dim^-1/2`.
    pub fn new(heads: i32, kv_heads: i32, head_dim: i32, rope: Rope) -> CoreAttention {
        CoreAttention {
            heads,
            kv_heads,
            head_dim,
            rope,
            qk_norm: None,
            softmax: Softmax::scaled((head_dim as f32).powf(-0.5)),
            output_gate: false,
            images_together: false,
            prepared: OnceCell::new(),
            on_device: OnceCell::new(),
        }
    }

    /// With norms of each query and each key head, before rotation.
    pub fn with_qk_norm(self, q_norm: RmsNorm, k_norm: RmsNorm) -> CoreAttention {
        CoreAttention { qk_norm: Some([q_norm, k_norm]), ..self }
    }

    pub fn with_softmax(self, softmax: Softmax) -> CoreAttention {
        CoreAttention { softmax, ..self }
    }

    /// With tokens of an image attending to those after them in it too.
    pub fn with_images_together(self) -> CoreAttention {
        CoreAttention { images_together: true, ..self }
    }

    /// Whether [`KvRow::images`] is to be given.
    pub fn images_together(&self) -> bool {
        self.images_together
    }

    /// With a gate after each head's query, as wide as the query, whose sigmoid multiplies the
    /// head's output.
    pub fn with_output_gate(self) -> CoreAttention {
        CoreAttention { output_gate: true, ..self }
    }

    /// Appends each row's keys and values to its buffers, then attends with its queries over all of
    /// them: `q` `[tokens, heads * head_dim]`, twice as wide with gates; `k`, `v`
    /// `[tokens, kv_heads * head_dim]`; `positions` int32 `[tokens]`, or
    /// `[tokens, axes]` for a [`Rope`] with axes. Returns
    /// `[tokens, heads * head_dim]`.
    ///
    /// On the CPU each row of the result depends on its own query and the keys before it alone, bit
    /// for bit.
    #[track_caller]
    pub fn forward(&self, qkv: [&Array; 3], positions: &Array, rows: &mut [KvRow]) -> Array {
        on_backend!(core_attention(self, qkv, positions, rows))
    }

    /// Attention of one sequence's tokens over all of them, also those after each, or over those
    /// fewer than `window` tokens away; nothing is cached. Shapes are those of
    /// [`forward`](CoreAttention::forward), without gates.
    #[track_caller]
    pub fn forward_both_ways(&self, [q, k, v]: [&Array; 3], positions: &Array, window: Option<i32>) -> Array {
        assert!(!self.output_gate && self.softmax.softcap.is_none(), "gates or caps");
        let q = q.reshape(&[-1, self.heads, self.head_dim]);
        let q = self.qk_norm.as_ref().map_or_else(|| q.clone(), |[q_norm, _]| q_norm.forward(&q));
        let q = self.turned(&q, positions);
        let [k, v] = self.keys_and_values([k, v], positions);
        let (scale, width) = (self.softmax.scale, self.heads * self.head_dim);
        on_backend!(attend_both_ways([&q, &k, &v], window, scale)).reshape(&[-1, width])
    }

    /// Keys and values `[tokens, kv_heads, head_dim]` as attention caches them, from projections
    /// `[tokens, kv_heads * head_dim]`: for tokens without a query.
    #[track_caller]
    pub fn keys_and_values(&self, [k, v]: [&Array; 2], positions: &Array) -> [Array; 2] {
        let [k, v] = [k, v].map(|x| x.reshape(&[-1, self.kv_heads, self.head_dim]));
        let k = self.qk_norm.as_ref().map_or_else(|| k.clone(), |[_, k_norm]| k_norm.forward(&k));
        [self.turned(&k, positions), v]
    }

    fn turned(&self, x: &Array, positions: &Array) -> Array {
        if self.rope.frequencies.is_empty() { x.clone() } else { rope(x, positions, &self.rope) }
    }

    /// The parameters as CPU kernels take them, built on first use.
    #[track_caller]
    pub(crate) fn prepared(&self) -> Arc<PreparedAttention> {
        self.prepared.get_or_init(|| Arc::new(PreparedAttention::new(self))).clone()
    }

    /// The parameters on a GPU, built on first use.
    #[track_caller]
    pub(crate) fn on_device(&self) -> &DeviceAttention {
        self.on_device.get_or_init(|| DeviceAttention::new(self))
    }
}

impl KvRow<'_> {
    /// Takes the buffers out, with room for the row's tokens.
    #[track_caller]
    pub(crate) fn reserve(&mut self, kv_heads: i32, head_dim: i32, dtype: Dtype) -> [Array; 2] {
        let length = self.past + self.tokens;
        [&mut self.keys, &mut self.values].map(|buffer| buffer.reserve(length, kv_heads, head_dim, dtype))
    }
}
