//! Buffers of keys, values or latents that grow in steps and are written in place.

use mlx::{Array, Dtype};

use crate::{
    KEY_BLOCK,
    backend::{Backend, cpu, zeros},
};

/// A growing buffer of keys, values or latents, `[kv_heads, capacity, dim]`; written in place,
/// hence not `Clone`. The first tokens appended determine its shape and type.
#[derive(Default)]
pub struct KvBuffer(Option<Array>);

/// Capacity grows in steps of this many tokens.
const CAPACITY_STEP: i32 = 256;

impl KvBuffer {
    /// The buffer's array, to be evaluated with a step.
    pub fn array(&self) -> Option<&Array> {
        self.0.as_ref()
    }

    /// Tokens there is room for.
    pub fn capacity(&self) -> i32 {
        self.0.as_ref().map_or(0, |array| array.dim(1))
    }

    /// A [copy](copy_tokens) of tokens `from..to`, `[kv_heads, to - from, dim]`; `None` if nothing
    /// was ever appended.
    #[track_caller]
    pub fn copy(&self, from: i32, to: i32) -> Option<Array> {
        self.0.as_ref().map(|array| copy_tokens(array, from, to))
    }

    /// A buffer of copies of consecutive `parts`, each `[kv_heads, tokens, dim]`, with room for at
    /// least `room` tokens more.
    #[track_caller]
    pub fn concatenate(parts: &[Array], room: i32) -> KvBuffer {
        let Some(first) = parts.first() else { return KvBuffer::default() };
        let length: i32 = parts.iter().map(|part| part.dim(1)).sum();
        // Never without room, so that a single part is copied too.
        let capacity = round_up(length + room.max(1));
        let room = zeros(&[first.dim(0), capacity - length, first.dim(2)], first.dtype());
        KvBuffer(Some(Array::concatenate(parts.iter().chain([&room]), 1)))
    }

    /// Keeps only tokens `from..to`, at the front of the buffer. `from` is a multiple of
    /// [`KEY_BLOCK`].
    #[track_caller]
    pub fn slide(&mut self, from: i32, to: i32) {
        assert_eq!(from % KEY_BLOCK, 0, "tokens {from}..{to} start inside a block");
        self.0 = self.0.as_ref().map(|array| array.slice(1, from, to).contiguous());
    }

    /// Takes the array out, with room for `length` tokens of `dim` numbers in each of `heads`; a
    /// new one has type `dtype`. It grows by at least a quarter, so that copies stay rare.
    #[track_caller]
    pub(crate) fn reserve(&mut self, length: i32, heads: i32, dim: i32, dtype: Dtype) -> Array {
        let array = self.0.take().unwrap_or_else(|| Array::zeros(&[heads, 0, dim], dtype));
        let capacity = array.dim(1);
        if length <= capacity {
            return array;
        }
        let target = round_up(length.max(capacity + capacity / 4));
        let room = zeros(&[heads, target - capacity, dim], array.dtype());
        Array::concatenate([&array, &room], 1)
    }

    /// Takes the array out, with room for `new` `[tokens, kv_heads, dim]` after `past` tokens.
    #[track_caller]
    pub(crate) fn reserve_for(&mut self, new: &Array, past: i32, dtype: Dtype) -> Array {
        self.reserve(past + new.dim(0), new.dim(1), new.dim(2), dtype)
    }

    /// Puts the array back after an operation has written it.
    pub(crate) fn refill(&mut self, array: Option<Array>) {
        self.0 = array;
    }

    /// # Panics
    /// If nothing was ever appended: a bug in a model file.
    #[track_caller]
    pub(crate) fn filled(&self) -> &Array {
        self.0.as_ref().unwrap_or_else(|| panic!("attention over an empty key/value buffer"))
    }
}

/// A [`KvBuffer`] on its way: copies of consecutive parts. On the CPU, where copying a long
/// sequence takes longer than a step, it is filled in slices; a GPU copies all at once.
pub struct KvBufferCopy {
    /// Row-major `[kv_heads, tokens, dim]`, and how many tokens of each to copy from its front.
    parts: Vec<(Array, i32)>,
    buffer: KvBuffer,
    /// Tokens written to the buffer so far, unused room included.
    written: i32,
    capacity: i32,
}

impl KvBufferCopy {
    /// Will copy `parts`, at least one, into a buffer with room for `room` more tokens or more.
    pub fn new(parts: Vec<(Array, i32)>, room: i32) -> KvBufferCopy {
        let length: i32 = parts.iter().map(|(_, tokens)| tokens).sum();
        let capacity = round_up(length + room.max(1));
        KvBufferCopy { parts, buffer: KvBuffer::default(), written: 0, capacity }
    }

    /// Bytes of a token.
    pub fn bytes_per_token(&self) -> usize {
        let part = &self.parts[0].0;
        part.dim(0) as usize * part.dim(2) as usize * part.dtype().size()
    }

    /// Writes at most `tokens` more, or all of them on a GPU; returns their bytes.
    #[track_caller]
    pub fn advance(&mut self, tokens: i32) -> usize {
        let end = match Backend::current() {
            Backend::Cpu => self.capacity.min(self.written.saturating_add(tokens)),
            Backend::Cuda | Backend::Mlx => self.capacity,
        };
        if self.written == end {
            return 0;
        }
        self.buffer = match Backend::current() {
            Backend::Cpu => KvBuffer(Some(self.write(end))),
            Backend::Cuda | Backend::Mlx => {
                let length: i32 = self.parts.iter().map(|(_, tokens)| tokens).sum();
                let parts = self.parts.iter().map(|(part, tokens)| match *tokens == part.dim(1) {
                    true => part.clone(),
                    false => part.slice(1, 0, *tokens),
                });
                KvBuffer::concatenate(&parts.collect::<Vec<_>>(), self.capacity - length)
            }
        };
        let bytes = (end - self.written) as usize * self.bytes_per_token();
        self.written = end;
        bytes
    }

    /// The buffer's array with the tokens from the first unwritten one to `end`. Zeros follow the
    /// parts' tokens.
    #[track_caller]
    fn write(&mut self, end: i32) -> Array {
        let first = &self.parts[0].0;
        let (shape, dtype) = ([first.dim(0), self.capacity, first.dim(2)], first.dtype());
        let mut buffer = self.buffer.0.take().unwrap_or_else(|| cpu::unwritten(&shape, dtype));
        let mut start = 0;
        for (part, tokens) in &self.parts {
            let (from, to) = (self.written.max(start), end.min(start + tokens));
            if from < to {
                buffer = cpu::write_tokens(&buffer, from, to, Some((part, from - start)));
            }
            start += tokens;
        }
        match self.written.max(start) {
            from if from < end => cpu::write_tokens(&buffer, from, end, None),
            _ => buffer,
        }
    }

    /// Whether everything is written.
    pub fn is_complete(&self) -> bool {
        self.written == self.capacity
    }

    /// The array so far, to be evaluated.
    pub fn array(&self) -> Option<&Array> {
        self.buffer.array()
    }

    /// # Panics
    /// If it is incomplete.
    pub fn into_buffer(self) -> KvBuffer {
        assert!(self.is_complete(), "{} of {} tokens are written", self.written, self.capacity);
        self.buffer
    }
}

fn round_up(tokens: i32) -> i32 {
    (tokens + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP
}

/// Tokens `from..to` of `[kv_heads, tokens, dim]` in memory of their own: later writes to the
/// buffer do not touch them.
#[track_caller]
pub fn copy_tokens(array: &Array, from: i32, to: i32) -> Array {
    let part = array.slice(1, from, to);
    // `contiguous` may share the memory of a row-major slice; concatenation always copies.
    let empty = Array::zeros(&[array.dim(0), 0, array.dim(2)], array.dtype());
    Array::concatenate([&part, &empty], 1)
}
