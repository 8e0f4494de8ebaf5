//! Stored state of a sequence: plain arrays with kinds and lengths, so that it can be serialized.

use std::{cell::Cell, collections::VecDeque};

use mlx::Array;
use nn::{KvBuffer, KvBufferCopy};

use super::tree::{HeapSize, Span};
use crate::cache::{Cache, Snapshot};

/// Keys and values (or latents) of consecutive tokens, for every full-attention layer in the order
/// of the model's caches: `[kv_heads, tokens, dim]` each.
#[derive(Clone)]
pub(crate) struct KvSpan {
    pub layers: Vec<[Option<Array>; 2]>,
    /// Compressed, or computed from compressed state.
    pub lossy: bool,
    /// Read from a disk and not used since.
    pub from_disk: Cell<bool>,
}

/// The state of all other layers at one position, in the order of the model's caches.
#[derive(Clone)]
pub(crate) struct StateSnapshot {
    pub layers: Vec<Snapshot>,
    /// See [`KvSpan`].
    pub lossy: bool,
    pub from_disk: Cell<bool>,
}

/// Stored state on its way into the caches of a sequence. Copying a long prefix at once would delay
/// the steps of all other sequences.
pub(crate) struct StateRestore {
    fills: VecDeque<Fill>,
    /// Capacity for further tokens.
    room: i32,
}

/// State to copy into one cache.
struct Fill {
    cache: usize,
    state: FillState,
}

enum FillState {
    /// Keys and values, as far as there are any, and their number of tokens.
    Tokens([Option<KvBufferCopy>; 2], usize),
    Snapshot(Snapshot),
}

impl KvSpan {
    /// Copies of tokens `from..to`.
    #[track_caller]
    pub(crate) fn copy(caches: &[Cache], [from, to]: [usize; 2], lossy: bool) -> KvSpan {
        let full_attention = caches.iter().filter_map(Cache::as_full_attention);
        KvSpan::new(full_attention.map(|kv| kv.copy(from as i32, to as i32)).collect(), lossy)
    }

    pub(crate) fn new(layers: Vec<[Option<Array>; 2]>, lossy: bool) -> KvSpan {
        KvSpan { layers, lossy, from_disk: Cell::new(false) }
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flatten().flatten()
    }

    /// Tokens `from..to`, copied unless these are all tokens.
    #[track_caller]
    pub(crate) fn part(&self, from: usize, to: usize) -> KvSpan {
        let part = |array: &Array| match from == 0 && to as i32 == array.dim(1) {
            true => array.clone(),
            false => nn::copy_tokens(array, from as i32, to as i32),
        };
        let layers = self.layers.iter().map(|sides| sides.each_ref().map(|side| side.as_ref().map(part)));
        KvSpan { layers: layers.collect(), lossy: self.lossy, from_disk: self.from_disk.clone() }
    }
}

impl StateRestore {
    /// Restores the given number of tokens of each of the consecutive `spans`, and the snapshot
    /// after them, into `caches` with capacity for `room` more tokens.
    #[track_caller]
    pub(crate) fn new(
        spans: &[(&KvSpan, usize)],
        snapshot: Option<&StateSnapshot>,
        caches: &[Cache],
        room: usize,
    ) -> StateRestore {
        let (length, room) = (spans.iter().map(|(_, tokens)| tokens).sum(), room as i32);
        let copy = |layer: usize, side: usize| {
            let part = |(span, tokens): &(&KvSpan, usize)| {
                span.layers[layer][side].clone().map(|array| (array, *tokens as i32))
            };
            let parts: Vec<_> = spans.iter().filter_map(part).collect();
            (!parts.is_empty()).then(|| KvBufferCopy::new(parts, room))
        };
        let (mut layer, mut others) = (0, snapshot.into_iter().flat_map(|snapshot| &snapshot.layers));
        let mut fills = VecDeque::new();
        for (cache, target) in caches.iter().enumerate() {
            let state = if target.as_full_attention().is_some() {
                layer += 1;
                (length > 0).then(|| FillState::Tokens([0, 1].map(|side| copy(layer - 1, side)), length))
            } else {
                others.next().cloned().map(FillState::Snapshot)
            };
            fills.extend(state.map(|state| Fill { cache, state }));
        }
        StateRestore { fills, room }
    }

    /// Copies state within `budget` bytes, at least a token or a snapshot unless that is 0; `true`
    /// once all is copied.
    ///
    /// # Errors
    /// Out of memory.
    #[track_caller]
    pub(crate) fn advance(&mut self, caches: &mut [Cache], budget: &mut usize) -> mlx::Result<bool> {
        let mut first = true;
        while let Some(mut fill) = self.fills.pop_front() {
            let starts = *budget > 0 && (first || fill.least_bytes() <= *budget);
            if !starts || !fill.advance(&mut caches[fill.cache], self.room, budget)? {
                self.fills.push_front(fill);
                return Ok(false);
            }
            first = false;
        }
        Ok(true)
    }
}

impl Fill {
    /// Bytes that cannot be copied in slices. Recurrent states are shared until they change.
    fn least_bytes(&self) -> usize {
        match &self.state {
            FillState::Snapshot(Snapshot::Recurrent(_)) | FillState::Tokens(..) => 0,
            FillState::Snapshot(window) => window.arrays().map(Array::nbytes).sum(),
        }
    }

    /// Copies state within `budget` bytes into its cache, which gets it once all is copied: then
    /// `true`.
    ///
    /// # Errors
    /// Out of memory.
    #[track_caller]
    fn advance(&mut self, cache: &mut Cache, room: i32, budget: &mut usize) -> mlx::Result<bool> {
        let least = self.least_bytes();
        match &mut self.state {
            FillState::Tokens(sides, length) => {
                let bytes_per_token: usize = sides.iter().flatten().map(KvBufferCopy::bytes_per_token).sum();
                let tokens = (*budget / bytes_per_token.max(1)).clamp(1, i32::MAX as usize) as i32;
                let copied: usize = sides.iter_mut().flatten().map(|side| side.advance(tokens)).sum();
                mlx::eval(sides.iter().flatten().filter_map(KvBufferCopy::array))?;
                *budget = budget.saturating_sub(copied);
                if !sides.iter().flatten().all(KvBufferCopy::is_complete) {
                    return Ok(false);
                }
                let buffer = |side: &mut Option<KvBufferCopy>| {
                    side.take().map_or_else(KvBuffer::default, KvBufferCopy::into_buffer)
                };
                cache.as_kv().restore(sides.each_mut().map(buffer), 0, *length as i32);
            }
            FillState::Snapshot(snapshot) => {
                cache.restore(snapshot, room);
                mlx::eval(cache.arrays())?;
                *budget = budget.saturating_sub(least);
            }
        }
        Ok(true)
    }
}

impl HeapSize for KvSpan {
    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}

impl Span for KvSpan {
    fn split(self, at: usize) -> [KvSpan; 2] {
        let half = |from: Option<i32>, to: Option<i32>| {
            let cut = |array: &Array| nn::copy_tokens(array, from.unwrap_or(0), to.unwrap_or(array.dim(1)));
            let layers = self.layers.iter().map(|sides| sides.each_ref().map(|side| side.as_ref().map(cut)));
            KvSpan { layers: layers.collect(), lossy: self.lossy, from_disk: self.from_disk.clone() }
        };
        let at = Some(at as i32);
        let halves = [half(None, at), half(at, None)];
        // A failure recurs where the halves are used.
        let _ = mlx::async_eval(halves.iter().flat_map(KvSpan::arrays));
        halves
    }
}

impl StateSnapshot {
    /// The state before the last `ahead` tokens in `caches`, all of which the last step may rewind.
    #[track_caller]
    pub(crate) fn new(caches: &[Cache], ahead: usize, lossy: bool) -> StateSnapshot {
        let layers = caches.iter().filter_map(|cache| cache.snapshot(ahead)).collect();
        StateSnapshot { layers, lossy, from_disk: Cell::new(false) }
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(Snapshot::arrays)
    }
}

impl HeapSize for StateSnapshot {
    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}
