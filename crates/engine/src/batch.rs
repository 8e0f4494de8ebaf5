//! Rows of several sequences stepped together, packed one after the other without padding.
//!
//! A model calls this and never learns how many sequences there are, what caches they have, or
//! where it runs.

use std::ops::Range;

use mlx::Array;
use nn::{CoreAttention, DeltaNet, DeltaRow, KvRow, Rope, Softmax};

use crate::cache::Cache;

/// Tokens that a sequence computes in a step.
pub(crate) struct BatchRow<'a> {
    pub num_tokens: usize,
    /// Number of these, from the end, that may be [rewound](Cache::rewind).
    pub num_draft: usize,
    /// Tokens before those of the step.
    pub num_computed: usize,
    pub caches: &'a mut [Cache],
}

/// A [`BatchRow`] at its place in the step.
struct Row<'a> {
    /// The row's tokens in the step.
    span: Range<i32>,
    num_draft: i32,
    caches: &'a mut [Cache],
    /// Images, from the row's first token on.
    images: Vec<Range<i32>>,
}

/// A step: `tokens` in all, rows in order.
pub(crate) struct Batch<'a> {
    rows: Vec<Row<'a>>,
    /// Position of every token in its own sequence, int32 `[tokens]`, or `[tokens, 3]` where images
    /// are placed in three axes.
    positions: Array,
    /// Features of images, `[tokens, hidden_size]` or a multiple of that wide, and the first token
    /// whose embedding they replace.
    features: Vec<(i32, Array)>,
    /// Layers whose outputs are wanted, and the outputs so far.
    capture: Vec<usize>,
    captured: Vec<(usize, Array)>,
    /// Layers that the residual stream bypasses.
    skipped: Vec<usize>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(rows: impl IntoIterator<Item = BatchRow<'a>>) -> Batch<'a> {
        let mut placed = vec![];
        let mut positions: Vec<i32> = vec![];
        for BatchRow { num_tokens, num_draft, num_computed, caches } in rows {
            let start = positions.len() as i32;
            positions.extend(num_computed as i32..(num_computed + num_tokens) as i32);
            placed.push(Row {
                span: start..positions.len() as i32,
                num_draft: num_draft as i32,
                caches,
                images: vec![],
            });
        }
        let positions = Array::from_slice(&positions, &[positions.len() as i32]);
        Batch {
            rows: placed,
            positions,
            features: vec![],
            capture: vec![],
            captured: vec![],
            skipped: vec![],
        }
    }

    /// Places the tokens, one after the other, by time, height and width.
    pub(crate) fn set_positions(&mut self, positions: &[[i32; 3]]) {
        assert_eq!(positions.len() as i32, self.positions.dim(0), "a position of each token");
        self.positions = Array::from_slice(positions.as_flattened(), &[positions.len() as i32, 3]);
    }

    /// Says which of each row's tokens are images.
    pub(crate) fn set_images(&mut self, images: Vec<Vec<Range<i32>>>) {
        self.rows.iter_mut().zip(images).for_each(|(row, images)| row.images = images);
    }

    /// Replaces embeddings from token `at` by features `[tokens, hidden_size]`; in ascending order.
    /// Wider ones have [more](Batch::add_deep_features).
    pub(crate) fn place_features(&mut self, at: i32, features: Array) {
        self.features.push((at, features));
    }

    /// Embeddings `h` `[tokens, hidden_size]` with features of images in their places.
    #[track_caller]
    pub(crate) fn splice(&self, h: Array) -> Array {
        if self.features.is_empty() {
            return h;
        }
        let width = h.dim(1);
        self.at_images(&h, |_, features| features.slice(1, 0, width).astype(h.dtype()))
    }

    /// Token ids `[tokens]` with `id` in the places of images.
    #[track_caller]
    pub(crate) fn with_images_as(&self, tokens: &Array, id: u32) -> Array {
        if self.features.is_empty() {
            return tokens.clone();
        }
        self.at_images(tokens, |own, _| Array::from_slice(&vec![id; own.dim(0) as usize], own.shape()))
    }

    /// The residual stream `h` `[tokens, hidden_size]` after layer `layer` with the further
    /// features of images for that layer, if there are any.
    #[track_caller]
    pub(crate) fn add_deep_features(&self, layer: usize, h: Array) -> Array {
        let width = h.dim(1);
        let from = (layer as i32 + 1) * width;
        if self.features.iter().all(|(_, features)| features.dim(1) <= from) {
            return h;
        }
        self.at_images(&h, |own, features| own + features.slice(1, from, from + width).astype(h.dtype()))
    }

    /// `h` `[tokens, ..]` with other rows at images, given theirs and the features.
    fn at_images(&self, h: &Array, replaced: impl Fn(&Array, &Array) -> Array) -> Array {
        let (mut parts, mut done) = (vec![], 0);
        for (at, features) in &self.features {
            if *at > done {
                parts.push(h.slice(0, done, *at));
            }
            done = at + features.dim(0);
            parts.push(replaced(&h.slice(0, *at, done), features));
        }
        if done < h.dim(0) {
            parts.push(h.slice(0, done, h.dim(0)));
        }
        Array::concatenate(&parts, 0)
    }

    /// Captures the residual stream after these layers.
    pub(crate) fn capture(&mut self, layers: &[usize]) {
        self.capture = layers.to_vec();
    }

    /// Skips these layers, whose caches stay unchanged, in models that
    /// [support](crate::models::Model::layers) it. The output is approximate.
    pub(crate) fn skip_layers(&mut self, layers: &[usize]) {
        self.skipped = layers.to_vec();
    }

    /// Whether a model should run this layer.
    pub(crate) fn runs_layer(&self, layer: usize) -> bool {
        !self.skipped.contains(&layer)
    }

    /// Called by a model after each layer, with its output `x` `[tokens, hidden_size]`.
    pub(crate) fn after_layer(&mut self, layer: usize, x: &Array) {
        if self.capture.contains(&layer) {
            self.captured.push((layer, x.clone()));
        }
    }

    /// Captured layers and the residual stream `[tokens, hidden_size]` after each.
    pub(crate) fn take_captured(&mut self) -> Vec<(usize, Array)> {
        std::mem::take(&mut self.captured)
    }

    /// The position of every token in its own sequence, int32 `[tokens]`, or `[tokens, 3]`.
    pub(crate) fn positions(&self) -> &Array {
        &self.positions
    }

    /// Rotary embedding of `x` `[tokens, heads, head_dim]` at each token's own position.
    #[track_caller]
    pub(crate) fn rope(&self, x: &Array, rope: &Rope) -> Array {
        nn::rope(x, &self.positions, rope)
    }

    /// Norms, rotation, causal attention of each row over its own past, and gates, as `heads` says:
    /// `q` `[tokens, heads * head_dim]`, twice as wide with gates, `k`, `v` `[tokens, kv_heads *
    /// head_dim]`.
    #[track_caller]
    pub(crate) fn attend_heads(&mut self, layer: usize, qkv: [&Array; 3], heads: &CoreAttention) -> Array {
        let rows = self.rows.iter_mut();
        let mut rows: Vec<KvRow> = rows.map(|row| row.kv(layer, heads.images_together())).collect();
        heads.forward(qkv, &self.positions, &mut rows)
    }

    /// Like [`attend_heads`](Batch::attend_heads), but each token sees all tokens of its row in the
    /// step, or those fewer than `window` away, and nothing is cached.
    #[track_caller]
    pub(crate) fn attend_both_ways(
        &mut self,
        [q, k, v]: [&Array; 3],
        heads: &CoreAttention,
        window: Option<i32>,
    ) -> Array {
        let positions = self.positions.clone();
        self.per_row([q, k, v, &positions], |_, [q, k, v, positions]| {
            heads.forward_both_ways([&q, &k, &v], &positions, window)
        })
    }

    /// Convolution, norms, gates and delta rule of a Gated DeltaNet, each row continuing its own
    /// past: `qkv` `[tokens, channels]`, `b`, `a` `[tokens, value_heads]`; returns `[tokens,
    /// value_heads * value_dim]`.
    #[track_caller]
    pub(crate) fn delta_net(
        &mut self,
        layer: usize,
        qkv: &Array,
        b: &Array,
        a: &Array,
        net: &DeltaNet,
    ) -> Array {
        let rows = self.rows.iter_mut();
        let mut rows: Vec<DeltaRow> = rows.map(|row| row.delta(layer)).collect();
        net.forward(qkv, b, a, &mut rows)
    }

    /// Causal attention of each row over its own past: `q` `[tokens, heads, head_dim]`, `k`, `v`
    /// `[tokens, kv_heads, dim]`.
    #[track_caller]
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        softmax: &Softmax,
    ) -> Array {
        self.per_row([q, k, v], |row, [q, k, v]| row.caches[layer].as_kv().attend(&q, [&k, &v], softmax))
    }

    /// Like [`attend`](Batch::attend), without a causal mask within the step.
    #[track_caller]
    pub(crate) fn attend_all(
        &mut self,
        layer: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        softmax: &Softmax,
    ) -> Array {
        self.per_row([q, k, v], |row, [q, k, v]| row.caches[layer].as_kv().attend_all(&q, [&k, &v], softmax))
    }

    /// Appends keys and values `[tokens, kv_heads, dim]` to each row's cache.
    #[track_caller]
    pub(crate) fn append(&mut self, layer: usize, k: &Array, v: &Array) {
        for row in &mut self.rows {
            let own = |x: &Array| x.slice(0, row.span.start, row.span.end);
            row.caches[layer].as_kv().append([&own(k), &own(v)]);
        }
    }

    /// Appends keys and values like [`attend_heads`](Batch::attend_heads), without attention: `k`,
    /// `v` `[tokens, kv_heads * head_dim]`.
    #[track_caller]
    pub(crate) fn append_heads(&mut self, layer: usize, kv: [&Array; 2], heads: &CoreAttention) {
        let [k, v] = heads.keys_and_values(kv, &self.positions);
        self.append(layer, &k, &v);
    }

    /// Like [`attend`](Batch::attend), but tokens of an image attend to all of it.
    #[track_caller]
    pub(crate) fn attend_images(
        &mut self,
        layer: usize,
        q: &Array,
        k: &Array,
        v: &Array,
        softmax: &Softmax,
    ) -> Array {
        self.per_row([q, k, v], |row, [q, k, v]| {
            let kv = row.caches[layer].as_kv();
            if row.images.is_empty() {
                return kv.attend(&q, [&k, &v], softmax);
            }
            kv.append([&k, &v]);
            kv.attend_images(&q, &row.images, softmax)
        })
    }

    /// Like [`attend_over`](Batch::attend_over), but tokens of an image attend to all of it.
    #[track_caller]
    pub(crate) fn attend_images_over(&mut self, layer: usize, q: &Array, softmax: &Softmax) -> Array {
        self.per_row([q], |row, [q]| row.caches[layer].as_kv().attend_images(&q, &row.images, softmax))
    }

    /// Attention over the keys and values that another layer appended in this step.
    #[track_caller]
    pub(crate) fn attend_over(&mut self, layer: usize, q: &Array, softmax: &Softmax) -> Array {
        self.per_row([q], |row, [q]| row.caches[layer].as_kv().attend_over(&q, softmax))
    }

    /// Causal attention over latents `[tokens, 1, dim]`: keys whose first `value_dim` numbers are
    /// the values.
    #[track_caller]
    pub(crate) fn attend_latent(
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
    pub(crate) fn causal_conv(&mut self, layer: usize, x: &Array, weight: &Array) -> Array {
        self.per_row([x], |row, [x]| {
            row.caches[layer].as_recurrent().causal_conv(&x, row.num_draft, weight, false)
        })
    }

    /// [`causal_conv`](Batch::causal_conv), then SiLU.
    #[track_caller]
    pub(crate) fn causal_conv_silu(&mut self, layer: usize, x: &Array, weight: &Array) -> Array {
        self.per_row([x], |row, [x]| {
            row.caches[layer].as_recurrent().causal_conv(&x, row.num_draft, weight, true)
        })
    }

    /// Gated delta rule; `q`, `k` `[tokens, key_heads, key_dim]`, `v` `[tokens, value_heads,
    /// value_dim]`, `beta` `[tokens, value_heads]`, the decay `g` likewise, or per channel
    /// `[tokens, value_heads, key_dim]`.
    #[track_caller]
    pub(crate) fn gated_delta(
        &mut self,
        layer: usize,
        [q, k, v]: [&Array; 3],
        g: &Array,
        beta: &Array,
    ) -> Array {
        self.per_row([q, k, v, g, beta], |row, [q, k, v, g, beta]| {
            let [q, k, v, g, beta] = [q, k, v, g, beta].map(|x| x.reshape(&[&[1], x.shape()].concat()));
            let out = row.caches[layer].as_recurrent().gated_delta([&q, &k, &v], row.num_draft, &g, &beta);
            out.reshape(&out.shape()[1..])
        })
    }

    /// Arrays of the caches after the step, to be evaluated with it.
    pub(crate) fn cache_arrays(&self) -> impl Iterator<Item = &Array> {
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
    /// With its images if they attend to all of themselves.
    fn kv(&mut self, layer: usize, images_together: bool) -> KvRow<'_> {
        let images = if images_together { &self.images[..] } else { &[] };
        KvRow { images, ..self.caches[layer].as_kv().row(self.span.len() as i32) }
    }

    fn delta(&mut self, layer: usize) -> DeltaRow<'_> {
        let past = self.caches[layer].as_recurrent();
        DeltaRow { tokens: self.span.len() as i32, num_draft: self.num_draft, state: past }
    }
}
