//! Rows of several sequences stepped together, packed one behind the other without padding.
//!
//! A model calls this and never learns how many sequences there are, what caches they have, or where it runs.

use std::ops::Range;

use mlx::Array;
use nn::{CoreAttention, DeltaNet, DeltaRow, KvRow, Rope, Softmax};

use crate::cache::Cache;

/// What a sequence has in a step.
pub struct Part<'a> {
    pub tokens: usize,
    /// The last of them, which may have to be forgotten again.
    pub ahead: usize,
    /// Tokens before those.
    pub past: usize,
    pub caches: &'a mut [Cache],
}

/// One sequence's part of a step.
struct Row<'a> {
    /// Tokens of the step that are this row's.
    span: Range<i32>,
    /// The last of those, which may have to be forgotten again.
    ahead: i32,
    caches: &'a mut [Cache],
}

/// A step: `tokens` in all, rows in order.
pub struct Batch<'a> {
    rows: Vec<Row<'a>>,
    /// Position of every token in its own sequence, int32 `[tokens]`.
    positions: Array,
    /// Layers whose outputs are wanted, and those outputs as far as they have come.
    watched: Vec<usize>,
    seen: Vec<(usize, Array)>,
    /// Layers that the residual stream goes past.
    left_out: Vec<usize>,
}

impl<'a> Batch<'a> {
    pub fn new(parts: impl IntoIterator<Item = Part<'a>>) -> Batch<'a> {
        let mut rows = vec![];
        let mut positions: Vec<i32> = vec![];
        for Part { tokens, ahead, past, caches } in parts {
            let start = positions.len() as i32;
            positions.extend(past as i32..(past + tokens) as i32);
            rows.push(Row { span: start..positions.len() as i32, ahead: ahead as i32, caches });
        }
        let positions = Array::from_slice(&positions, &[positions.len() as i32]);
        Batch { rows, positions, watched: vec![], seen: vec![], left_out: vec![] }
    }

    /// Also keeps what the residual stream is behind these layers.
    pub fn watch(&mut self, layers: &[usize]) {
        self.watched = layers.to_vec();
    }

    /// Takes the residual stream past these layers, whose caches stay as they are: for models that
    /// [can](crate::models::Model::layers) do without some. What comes out is a guess.
    pub fn leave_out(&mut self, layers: &[usize]) {
        self.left_out = layers.to_vec();
    }

    /// Asked by a model before each layer.
    pub fn computes(&self, layer: usize) -> bool {
        !self.left_out.contains(&layer)
    }

    /// Told by a model behind each layer: `x` `[tokens, hidden_size]`.
    pub fn passed(&mut self, layer: usize, x: &Array) {
        if self.watched.contains(&layer) {
            self.seen.push((layer, x.clone()));
        }
    }

    /// Layers that were watched, and the residual stream `[tokens, hidden_size]` behind each.
    pub fn seen(&mut self) -> Vec<(usize, Array)> {
        std::mem::take(&mut self.seen)
    }

    /// Position of every token in its own sequence, int32 `[tokens]`.
    pub fn positions(&self) -> &Array {
        &self.positions
    }

    /// Rotary embedding of `x` `[tokens, heads, head_dim]` at each token's own position.
    #[track_caller]
    pub fn rope(&self, x: &Array, rope: &Rope) -> Array {
        nn::rope(x, &self.positions, rope)
    }

    /// Norms, rotation, causal attention of each row over its own past, and gates, as `heads` has them: `q`
    /// `[tokens, heads * head_dim]`, twice as wide with gates, `k`, `v` `[tokens, kv_heads * head_dim]`.
    #[track_caller]
    pub fn attend_heads(&mut self, layer: usize, qkv: [&Array; 3], heads: &CoreAttention) -> Array {
        let rows = self.rows.iter_mut();
        let mut rows: Vec<KvRow> =
            rows.map(|row| row.caches[layer].as_kv().row(row.span.len() as i32)).collect();
        heads.forward(qkv, &self.positions, &mut rows)
    }

    /// Convolution, norms, gates and delta rule of a Gated DeltaNet, each row continuing its own past: `qkv`
    /// `[tokens, channels]`, `b`, `a` `[tokens, value_heads]`; returns `[tokens, value_heads * value_dim]`.
    #[track_caller]
    pub fn delta_net(&mut self, layer: usize, qkv: &Array, b: &Array, a: &Array, net: &DeltaNet) -> Array {
        let rows = self.rows.iter_mut();
        let mut rows: Vec<DeltaRow> = rows.map(|row| row.delta(layer)).collect();
        net.forward(qkv, b, a, &mut rows)
    }

    /// Causal attention of each row over its own past: `q` `[tokens, heads, head_dim]`, `k`, `v`
    /// `[tokens, kv_heads, dim]`.
    #[track_caller]
    pub fn attend(&mut self, layer: usize, q: &Array, k: &Array, v: &Array, softmax: &Softmax) -> Array {
        self.per_row([q, k, v], |row, [q, k, v]| row.caches[layer].as_kv().attend(&q, [&k, &v], softmax))
    }

    /// As [`attend`](Batch::attend), of tokens that see those behind them in the step as well.
    #[track_caller]
    pub fn attend_all(&mut self, layer: usize, q: &Array, k: &Array, v: &Array, softmax: &Softmax) -> Array {
        self.per_row([q, k, v], |row, [q, k, v]| row.caches[layer].as_kv().attend_all(&q, [&k, &v], softmax))
    }

    /// Puts keys and values `[tokens, kv_heads, dim]` into each row's cache, for queries to come.
    #[track_caller]
    pub fn append(&mut self, layer: usize, k: &Array, v: &Array) {
        for row in &mut self.rows {
            let own = |x: &Array| x.slice(0, row.span.start, row.span.end);
            row.caches[layer].as_kv().append([&own(k), &own(v)]);
        }
    }

    /// Appends keys and values like [`attend_heads`](Batch::attend_heads), without attention: `k`, `v`
    /// `[tokens, kv_heads * head_dim]`.
    #[track_caller]
    pub fn append_heads(&mut self, layer: usize, kv: [&Array; 2], heads: &CoreAttention) {
        let [k, v] = heads.keys_and_values(kv, &self.positions);
        self.append(layer, &k, &v);
    }

    /// Attention over the keys and values that another layer has put in its cache in this step.
    #[track_caller]
    pub fn attend_over(&mut self, layer: usize, q: &Array, softmax: &Softmax) -> Array {
        self.per_row([q], |row, [q]| row.caches[layer].as_kv().attend_over(&q, softmax))
    }

    /// Causal attention over latents `[tokens, 1, dim]`: keys whose first `value_dim` numbers are the values.
    #[track_caller]
    pub fn attend_latent(
        &mut self,
        layer: usize,
        q: &Array,
        latent: &Array,
        value_dim: i32,
        softmax: &Softmax,
    ) -> Array {
        self.per_row([q, latent], |row, [q, latent]| {
            row.caches[layer].as_kv().attend_latent(&q, &latent, value_dim, softmax)
        })
    }

    /// Short causal convolution of `x` `[tokens, channels]`, each row continuing its own past.
    #[track_caller]
    pub fn causal_conv(&mut self, layer: usize, x: &Array, weight: &Array) -> Array {
        self.per_row([x], |row, [x]| {
            row.caches[layer].as_recurrent().causal_conv(&x, row.ahead, weight, false)
        })
    }

    /// [`causal_conv`](Batch::causal_conv), then SiLU.
    #[track_caller]
    pub fn causal_conv_silu(&mut self, layer: usize, x: &Array, weight: &Array) -> Array {
        self.per_row([x], |row, [x]| {
            row.caches[layer].as_recurrent().causal_conv(&x, row.ahead, weight, true)
        })
    }

    /// Gated delta rule; `q`, `k` `[tokens, key_heads, key_dim]`, `v` `[tokens, value_heads, value_dim]`, `beta`
    /// `[tokens, value_heads]`, the decay `g` likewise, or per channel `[tokens, value_heads, key_dim]`.
    #[track_caller]
    pub fn gated_delta(&mut self, layer: usize, [q, k, v]: [&Array; 3], g: &Array, beta: &Array) -> Array {
        self.per_row([q, k, v, g, beta], |row, [q, k, v, g, beta]| {
            let [q, k, v, g, beta] = [q, k, v, g, beta].map(|x| x.reshape(&[&[1], x.shape()].concat()));
            let out = row.caches[layer].as_recurrent().gated_delta([&q, &k, &v], row.ahead, &g, &beta);
            out.reshape(&out.shape()[1..])
        })
    }

    /// The caches' arrays after the step, to be evaluated with it.
    pub fn cache_arrays(&self) -> impl Iterator<Item = &Array> {
        self.rows.iter().flat_map(|row| row.caches.iter().flat_map(Cache::arrays))
    }

    #[track_caller]
    fn per_row<const N: usize>(
        &mut self,
        inputs: [&Array; N],
        mut step: impl FnMut(&mut Row, [Array; N]) -> Array,
    ) -> Array {
        if let [row] = &mut self.rows[..] {
            return step(row, inputs.map(Array::clone));
        }
        let outputs: Vec<Array> = self
            .rows
            .iter_mut()
            .map(|row| {
                let Range { start, end } = row.span;
                step(row, inputs.map(|x| x.slice(0, start, end)))
            })
            .collect();
        Array::concatenate(&outputs, 0)
    }
}

impl Row<'_> {
    fn delta(&mut self, layer: usize) -> DeltaRow<'_> {
        let past = self.caches[layer].as_recurrent();
        DeltaRow { tokens: self.span.len() as i32, num_draft: self.ahead, state: past }
    }
}
