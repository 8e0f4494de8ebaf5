//! Keys and values of an attention layer, or the latents that stand for both; room grows in steps, written in place.

use mlx::Array;
use nn::{KEY_BLOCK, KvBuffer, KvRow, Softmax};

use super::{Window, WindowEvicted};

/// Tokens kept beyond a window, so that a short step back (a rejected draft) finds what it needs.
pub const REWINDABLE: i32 = 64;
/// A window's buffer moves only when it can drop at least this many tokens, so that moves stay rare.
const WORTH_MOVING: i32 = 256;

pub struct Kv {
    keys: KvBuffer,
    /// Unused where one buffer holds latents.
    values: KvBuffer,
    /// Tokens seen.
    length: i32,
    /// Position of the buffers' first token: 0 until a window has moved.
    start: i32,
    window: Option<i32>,
}

impl Kv {
    pub fn new(window: Option<i32>) -> Kv {
        Kv { keys: KvBuffer::default(), values: KvBuffer::default(), length: 0, start: 0, window }
    }

    /// Tokens seen.
    pub fn length(&self) -> i32 {
        self.length
    }

    pub fn arrays(&self) -> [Option<&Array>; 2] {
        [self.keys.array(), self.values.array()]
    }

    pub fn window(&self) -> Option<i32> {
        self.window
    }

    /// Copies of the keys and values of tokens `from..to`.
    #[track_caller]
    pub fn copy(&self, from: i32, to: i32) -> [Option<Array>; 2] {
        assert!(self.start <= from && to <= self.length, "{from}..{to} of {}..{}", self.start, self.length);
        [&self.keys, &self.values].map(|buffer| buffer.copy(from - self.start, to - self.start))
    }

    /// A copy of what queries behind all but the last `back` tokens see, and a few tokens more.
    ///
    /// # Panics
    /// If the window has moved past that point: a bug of ours.
    #[track_caller]
    pub fn snapshot(&self, back: i32) -> Window {
        let length = self.length - back;
        assert!(self.first_needed(length) >= self.start, "{back} tokens back from {}", self.length);
        let start = self.start.max(self.reach(length));
        let [keys, values] = self.copy(start, length);
        Window { keys, values, start, length }
    }

    /// Goes on behind tokens `start..length`, whose keys and values are given in parts; with room for `room` more.
    #[track_caller]
    pub fn restore(&mut self, parts: [&[Array]; 2], start: i32, length: i32, room: i32) {
        [self.keys, self.values] = parts.map(|parts| KvBuffer::concatenate(parts, room));
        (self.start, self.length) = (start, length);
    }

    /// This sequence's part of a step of `tokens` more, which are counted as seen.
    #[track_caller]
    pub fn row(&mut self, tokens: i32) -> KvRow<'_> {
        self.make_room(tokens);
        let past = self.length - self.start;
        self.length += tokens;
        KvRow { tokens, past, window: self.window, keys: &mut self.keys, values: &mut self.values }
    }

    /// Appends `k`, `v` `[tokens, kv_heads, dim]` and attends with `q` `[tokens, heads, head_dim]`.
    #[track_caller]
    pub fn attend(&mut self, q: &Array, [k, v]: [&Array; 2], softmax: &Softmax) -> Array {
        self.make_room(q.dim(0));
        let past = self.length - self.start;
        let out = nn::attend(q, [k, v], &mut self.keys, &mut self.values, past, self.window, softmax);
        self.length += q.dim(0);
        out
    }

    /// Appends `k`, `v` `[tokens, kv_heads, dim]`.
    #[track_caller]
    pub fn append(&mut self, [k, v]: [&Array; 2]) {
        self.make_room(k.dim(0));
        nn::append_kv([k, v], &mut self.keys, &mut self.values, self.length - self.start);
        self.length += k.dim(0);
    }

    /// Appends `k`, `v` `[tokens, kv_heads, dim]` and attends with `q` `[tokens, heads, head_dim]`, each over all of it.
    ///
    /// # Panics
    /// Of a window: a bug in a model file.
    #[track_caller]
    pub fn attend_all(&mut self, q: &Array, [k, v]: [&Array; 2], softmax: &Softmax) -> Array {
        assert!(self.window.is_none(), "a window's queries do not see the same keys");
        self.append([k, v]);
        // Queries that see the same are like more heads of one query.
        let (tokens, heads, kv_heads) = (q.dim(0), q.dim(1), k.dim(1));
        let q = q.reshape(&[tokens, kv_heads, heads / kv_heads, -1]).transpose(&[1, 0, 2, 3]);
        let out = self.attend_over(&q.reshape(&[1, tokens * heads, -1]), softmax);
        let out = out.reshape(&[kv_heads, tokens, heads / kv_heads, -1]).transpose(&[1, 0, 2, 3]);
        out.reshape(&[tokens, heads, -1])
    }

    /// Attends with `q` over what was appended already; the queries are the last of it.
    #[track_caller]
    pub fn attend_over(&self, q: &Array, softmax: &Softmax) -> Array {
        nn::attend_cached(q, &self.keys, &self.values, self.length - self.start, self.window, softmax)
    }

    /// Appends `latent` `[tokens, 1, dim]`, keys whose first `value_dim` numbers are the values, and attends.
    #[track_caller]
    pub fn attend_latent(&mut self, q: &Array, latent: &Array, value_dim: i32, softmax: &Softmax) -> Array {
        self.make_room(q.dim(0));
        let past = self.length - self.start;
        let out = nn::attend_latent(q, latent, &mut self.keys, value_dim, past, self.window, softmax);
        self.length += q.dim(0);
        out
    }

    /// Forgets the last `tokens`.
    pub fn rewind(&mut self, tokens: i32) -> Result<(), WindowEvicted> {
        assert!(tokens <= self.length, "{tokens} back from {}", self.length);
        if self.first_needed(self.length - tokens) < self.start {
            return Err(WindowEvicted);
        }
        self.length -= tokens;
        Ok(())
    }

    /// The first position that the query at `length` sees.
    fn first_needed(&self, length: i32) -> i32 {
        self.window.map_or(0, |window| (length + 1 - window).max(0))
    }

    /// The first position to keep for what comes behind `length`: the start of a whole block, so that attention's blocks
    /// stay where they were; see `nn::KvBuffer::slide`.
    fn reach(&self, length: i32) -> i32 {
        (self.first_needed(length) - REWINDABLE).max(0) / KEY_BLOCK * KEY_BLOCK
    }

    /// Before the buffers grow for `tokens` more, drops what no window reaches.
    #[track_caller]
    fn make_room(&mut self, tokens: i32) {
        let live = self.length - self.start;
        let keep = self.reach(self.length);
        let drop = keep - self.start;
        let worth = drop >= WORTH_MOVING.max(self.window.unwrap_or(0) / 2);
        if live + tokens > self.keys.capacity() && worth {
            self.keys.slide(drop, live);
            self.values.slide(drop, live);
            self.start = keep;
        }
    }
}
