//! What a sequence carries from token to token, per layer: keys and values, or a recurrent state.
//!
//! Each cache can be marked and rewound. A mark is a handle, not a copy.

use mlx::{Array, Dtype, KvBuffer};

/// One layer's state of one sequence.
pub enum Cache {
    Kv(Kv),
    Recurrent(Recurrent),
}

/// Keys and values of a full-attention layer; room grows in steps, written in place.
pub struct Kv {
    keys: KvBuffer,
    values: KvBuffer,
    length: i32,
}

/// State of a layer that sees the past through a fixed-size summary.
pub struct Recurrent {
    /// The last inputs of the short convolution, `[width - 1, channels]`.
    pub conv: Array,
    /// `[1, value_heads, value_dim, key_dim]`, float32.
    pub state: Array,
}

/// A point in a cache's past; only good for the cache it came from, and until that is rewound further.
#[derive(Clone)]
pub enum Mark {
    Kv { length: i32 },
    Recurrent { conv: Array, state: Array },
}

impl Cache {
    /// An empty cache for `[kv_heads, tokens, head_dim]` keys and values.
    pub fn kv(kv_heads: i32, head_dim: i32, dtype: Dtype) -> Cache {
        let buffer = || KvBuffer::new(kv_heads, head_dim, dtype);
        Cache::Kv(Kv { keys: buffer(), values: buffer(), length: 0 })
    }

    /// An empty recurrent cache: zeros of the given shapes.
    pub fn recurrent(conv: &[i32], conv_dtype: Dtype, state: &[i32]) -> Cache {
        let (conv, state) = (Array::zeros(conv, conv_dtype), Array::zeros(state, Dtype::Float32));
        Cache::Recurrent(Recurrent { conv, state })
    }

    /// Remembers this point.
    #[cfg_attr(not(test), expect(dead_code, reason = "first used by the prefix cache"))]
    pub fn mark(&self) -> Mark {
        match self {
            Cache::Kv(kv) => Mark::Kv { length: kv.length },
            Cache::Recurrent(r) => Mark::Recurrent { conv: r.conv.clone(), state: r.state.clone() },
        }
    }

    /// Forgets everything after `mark`.
    ///
    /// # Panics
    /// If the mark is another kind of cache's, or lies in the future: bugs of ours.
    #[cfg_attr(not(test), expect(dead_code, reason = "first used by the prefix cache"))]
    pub fn rewind(&mut self, mark: &Mark) {
        match (self, mark) {
            (Cache::Kv(kv), Mark::Kv { length }) => {
                assert!(*length <= kv.length, "rewind to {length} of {} tokens", kv.length);
                kv.length = *length;
            }
            (Cache::Recurrent(r), Mark::Recurrent { conv, state }) => {
                (r.conv, r.state) = (conv.clone(), state.clone());
            }
            _ => panic!("mark of another kind of cache"),
        }
    }

    /// The arrays a step leaves behind, to be evaluated with it.
    pub fn arrays(&self) -> [&Array; 2] {
        match self {
            Cache::Kv(kv) => [kv.keys.array(), kv.values.array()],
            Cache::Recurrent(r) => [&r.conv, &r.state],
        }
    }

    /// # Panics
    /// If this layer's cache is of another kind: a bug in a model file.
    #[track_caller]
    pub fn as_kv(&mut self) -> &mut Kv {
        match self {
            Cache::Kv(kv) => kv,
            Cache::Recurrent(_) => panic!("attention on a recurrent layer's cache"),
        }
    }

    /// # Panics
    /// If this layer's cache is of another kind: a bug in a model file.
    #[track_caller]
    pub fn as_recurrent(&mut self) -> &mut Recurrent {
        match self {
            Cache::Recurrent(recurrent) => recurrent,
            Cache::Kv(_) => panic!("recurrence on an attention layer's cache"),
        }
    }
}

impl Kv {
    /// Appends `k`, `v` `[tokens, kv_heads, head_dim]` and attends with `q` `[tokens, heads, head_dim]`.
    #[track_caller]
    pub fn attend(&mut self, q: &Array, k: &Array, v: &Array, scale: f32) -> Array {
        let out = mlx::attend(q, k, v, &mut self.keys, &mut self.values, self.length, scale);
        self.length += q.dim(0);
        out
    }
}
