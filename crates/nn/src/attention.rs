//! Causal softmax attention over the cached keys and values of one sequence.

use mlx::Array;

use crate::{KvBuffer, backend::on_backend};

/// How scores become weights.
#[derive(Clone)]
pub struct Softmax {
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// One logit per head, float32 `[heads]`, that only takes part in the normalisation.
    pub sinks: Option<Array>,
}

/// Attention sums in order within blocks of this many keys: tokens are dropped from the front of a
/// buffer in multiples of it, so that blocks stay as they are.
pub const KEY_BLOCK: i32 = kernels::KEY_BLOCK as i32;

impl Softmax {
    pub fn scaled(scale: f32) -> Softmax {
        Softmax { scale, softcap: None, sinks: None }
    }
}

/// Appends `k` and `v` `[tokens, kv_heads, dim]` after the `past` tokens of the buffers, then
/// attends with `q` `[tokens, heads, head_dim]` over all of them, or over the last `window` of each
/// query; returns `[tokens, heads, value_dim]`.
///
/// On the CPU each row of the result depends on its own query and the keys before it alone, bit for
/// bit.
#[track_caller]
pub fn attend(
    q: &Array,
    [k, v]: [&Array; 2],
    keys: &mut KvBuffer,
    values: &mut KvBuffer,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    on_backend!(attend(q, [k, v], [keys, values], past, window, softmax))
}

/// Appends `k` and `v` `[tokens, kv_heads, dim]` after the `past` tokens of the buffers.
#[track_caller]
pub fn append_kv([k, v]: [&Array; 2], keys: &mut KvBuffer, values: &mut KvBuffer, past: i32) {
    on_backend!(append_kv([k, v], [keys, values], past))
}

/// [`attend`] over the `length` tokens already in the buffers; the queries are the last of them.
#[track_caller]
pub fn attend_cached(
    q: &Array,
    keys: &KvBuffer,
    values: &KvBuffer,
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    on_backend!(attend_cached(q, [keys, values], length, window, softmax))
}

/// [`attend_cached`] in which the queries, those of an image, attend to all after them too.
#[track_caller]
pub fn attend_together(
    q: &Array,
    keys: &KvBuffer,
    values: &KvBuffer,
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    on_backend!(attend_together(q, [keys, values], length, window, softmax))
}

/// [`attend`] where keys and values are one latent `[tokens, 1, head_dim]`, whose first `value_dim`
/// numbers are the value (multi-head latent attention, DeepSeek-V2, 2024).
#[track_caller]
pub fn attend_latent(
    q: &Array,
    latent: &Array,
    buffer: &mut KvBuffer,
    value_dim: i32,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    on_backend!(attend_latent(q, latent, buffer, value_dim, past, window, softmax))
}
