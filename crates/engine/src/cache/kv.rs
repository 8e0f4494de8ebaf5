//! Keys and values of an attention layer, or the latents that replace both; buffers grow in steps
//! and are written in place.

use std::ops::Range;

use mlx::Array;
use nn::{KEY_BLOCK, KvBuffer, KvRow, Softmax};

use super::{Window, WindowEvicted};

/// Tokens kept before a window, so that a rejected draft can be rewound.
pub(crate) const REWINDABLE: i32 = 64;
/// A window's buffer moves only if it drops at least this many tokens, so that moves stay rare.
const MIN_DROP: i32 = 256;

pub(crate) struct Kv {
    keys: KvBuffer,
    /// Empty if `keys` holds latents.
    values: KvBuffer,
    /// Number of tokens appended.
    length: i32,
    /// Position of the buffers' first token; 0 until a window moves.
    start: i32,
    window: Option<i32>,
}

impl Kv {
    pub(crate) fn new(window: Option<i32>) -> Kv {
        Kv { keys: KvBuffer::default(), values: KvBuffer::default(), length: 0, start: 0, window }
    }

    /// Number of tokens appended.
    pub(crate) fn length(&self) -> i32 {
        self.length
    }

    pub(crate) fn arrays(&self) -> [Option<&Array>; 2] {
        [self.keys.array(), self.values.array()]
    }

    pub(crate) fn window(&self) -> Option<i32> {
        self.window
    }

    /// Copies of the keys and values of tokens `from..to`.
    #[track_caller]
    pub(crate) fn copy(&self, from: i32, to: i32) -> [Option<Array>; 2] {
        assert!(self.start <= from && to <= self.length, "{from}..{to} of {}..{}", self.start, self.length);
        [&self.keys, &self.values].map(|buffer| buffer.copy(from - self.start, to - self.start))
    }

    /// Copies the window at `ahead` tokens before the end.
    ///
    /// # Panics
    /// If the window no longer has those tokens.
    #[track_caller]
    pub(crate) fn snapshot(&self, ahead: i32) -> Window {
        let length = self.length - ahead;
        assert!(self.first_visible(length) >= self.start, "{ahead} tokens back from {}", self.length);
        let start = self.start.max(self.first_kept(length));
        let [keys, values] = self.copy(start, length);
        Window { keys, values, start, length }
    }

    /// Replaces the contents by tokens `start..length`.
    pub(crate) fn restore(&mut self, [keys, values]: [KvBuffer; 2], start: i32, length: i32) {
        (self.keys, self.values, self.start, self.length) = (keys, values, start, length);
    }

    /// Appends `tokens` and returns this sequence's row of a batched step that fills them.
    #[track_caller]
    pub(crate) fn row(&mut self, tokens: i32) -> KvRow<'_> {
        self.reserve(tokens);
        let past = self.length - self.start;
        self.length += tokens;
        KvRow {
            tokens,
            past,
            window: self.window,
            images: &[],
            keys: &mut self.keys,
            values: &mut self.values,
        }
    }

    /// Appends `k`, `v` `[tokens, kv_heads, dim]` and attends with `q` `[tokens, heads, head_dim]`.
    #[track_caller]
    pub(crate) fn attend(&mut self, q: &Array, [k, v]: [&Array; 2], softmax: &Softmax) -> Array {
        self.reserve(q.dim(0));
        let past = self.length - self.start;
        let out = nn::attend(q, [k, v], &mut self.keys, &mut self.values, past, self.window, softmax);
        self.length += q.dim(0);
        out
    }

    /// Appends `k`, `v` `[tokens, kv_heads, dim]`.
    #[track_caller]
    pub(crate) fn append(&mut self, [k, v]: [&Array; 2]) {
        self.reserve(k.dim(0));
        nn::append_kv([k, v], &mut self.keys, &mut self.values, self.length - self.start);
        self.length += k.dim(0);
    }

    /// Appends `k`, `v` `[tokens, kv_heads, dim]` and attends with `q` `[tokens, heads, head_dim]`
    /// without a causal mask.
    ///
    /// # Panics
    /// If this is a window.
    #[track_caller]
    pub(crate) fn attend_all(&mut self, q: &Array, [k, v]: [&Array; 2], softmax: &Softmax) -> Array {
        assert!(self.window.is_none(), "queries of a window see different keys");
        self.append([k, v]);
        // Queries that see the same keys are like more heads of one query.
        let (tokens, heads, kv_heads) = (q.dim(0), q.dim(1), k.dim(1));
        let q = q.reshape(&[tokens, kv_heads, heads / kv_heads, -1]).transpose(&[1, 0, 2, 3]);
        let out = self.attend_over(&q.reshape(&[1, tokens * heads, -1]), softmax);
        let out = out.reshape(&[kv_heads, tokens, heads / kv_heads, -1]).transpose(&[1, 0, 2, 3]);
        out.reshape(&[tokens, heads, -1])
    }

    /// Attends with `q`, the queries of the last tokens, without appending.
    #[track_caller]
    pub(crate) fn attend_over(&self, q: &Array, softmax: &Softmax) -> Array {
        nn::attend_cached(q, &self.keys, &self.values, self.length - self.start, self.window, softmax)
    }

    /// [`attend_over`](Kv::attend_over) in which the queries of each of `images`, from the first
    /// query on, attend to all of one another.
    #[track_caller]
    pub(crate) fn attend_images(&self, q: &Array, images: &[Range<i32>], softmax: &Softmax) -> Array {
        let live = self.length - self.start;
        let (before, mut outs, mut done) = (live - q.dim(0), vec![], 0);
        for image in images {
            if image.start > done {
                let (own, length) = (q.slice(0, done, image.start), before + image.start);
                let window = self.window;
                outs.push(nn::attend_cached(&own, &self.keys, &self.values, length, window, softmax));
            }
            let (own, length) = (q.slice(0, image.start, image.end), before + image.end);
            outs.push(nn::attend_together(&own, &self.keys, &self.values, length, self.window, softmax));
            done = image.end;
        }
        if done < q.dim(0) {
            outs.push(self.attend_over(&q.slice(0, done, q.dim(0)), softmax));
        }
        Array::concatenate(&outs, 0)
    }

    /// Appends `latent` `[tokens, 1, dim]`, keys whose first `value_dim` elements are the values,
    /// and attends.
    #[track_caller]
    pub(crate) fn attend_latent(
        &mut self,
        q: &Array,
        latent: &Array,
        value_dim: i32,
        softmax: &Softmax,
    ) -> Array {
        self.reserve(q.dim(0));
        let past = self.length - self.start;
        let out = nn::attend_latent(q, latent, &mut self.keys, value_dim, past, self.window, softmax);
        self.length += q.dim(0);
        out
    }

    /// Removes the last `tokens`.
    pub(crate) fn rewind(&mut self, tokens: i32) -> Result<(), WindowEvicted> {
        assert!(tokens <= self.length, "{tokens} back from {}", self.length);
        if self.first_visible(self.length - tokens) < self.start {
            return Err(WindowEvicted);
        }
        self.length -= tokens;
        Ok(())
    }

    /// The first position that the query at `length` attends to.
    fn first_visible(&self, length: i32) -> i32 {
        self.window.map_or(0, |window| (length + 1 - window).max(0))
    }

    /// The first position to keep for tokens from `length` on: a multiple of the block size, so
    /// that attention's blocks stay aligned; see `nn::KvBuffer::slide`.
    fn first_kept(&self, length: i32) -> i32 {
        (self.first_visible(length) - REWINDABLE).max(0) / KEY_BLOCK * KEY_BLOCK
    }

    /// Drops tokens outside the window if the buffers would otherwise have to grow for `tokens`
    /// more.
    #[track_caller]
    fn reserve(&mut self, tokens: i32) {
        let live = self.length - self.start;
        let first_kept = self.first_kept(self.length);
        let drop = first_kept - self.start;
        let worth_moving = drop >= MIN_DROP.max(self.window.unwrap_or(0) / 2);
        if live + tokens > self.keys.capacity() && worth_moving {
            self.keys.slide(drop, live);
            self.values.slide(drop, live);
            self.start = first_kept;
        }
    }
}
