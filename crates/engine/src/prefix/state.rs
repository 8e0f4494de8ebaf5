//! Stored state of a sequence: plain arrays with kinds and lengths, so that it can be serialized.

use std::{cell::Cell, collections::VecDeque};

use mlx::Array;

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
    room: usize,
}

/// State to copy into one cache.
struct Fill {
    cache: usize,
    state: FillState,
}

enum FillState {
    /// Keys and values in consecutive parts, and their number of tokens.
    Parts([Vec<Array>; 2], usize),
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
        let length: usize = spans.iter().map(|(_, tokens)| tokens).sum();
        let parts = |layer: usize, side: usize| {
            let part = |(span, tokens): &(&KvSpan, usize)| {
                let array = span.layers[layer][side].as_ref()?;
                let whole = *tokens as i32 == array.dim(1);
                Some(if whole { array.clone() } else { array.slice(1, 0, *tokens as i32) })
            };
            spans.iter().filter_map(part).collect::<Vec<_>>()
        };
        let (mut layer, mut others) = (0, snapshot.into_iter().flat_map(|snapshot| &snapshot.layers));
        let mut fills = VecDeque::new();
        for (cache, target) in caches.iter().enumerate() {
            let state = if target.as_full_attention().is_some() {
                layer += 1;
                (length > 0).then(|| FillState::Parts([parts(layer - 1, 0), parts(layer - 1, 1)], length))
            } else {
                others.next().cloned().map(FillState::Snapshot)
            };
            fills.extend(state.map(|state| Fill { cache, state }));
        }
        StateRestore { fills, room }
    }

    /// Fills caches within `budget` bytes, at least one unless that is 0; `true` once all are
    /// filled.
    ///
    /// # Errors
    /// Out of memory.
    #[track_caller]
    pub(crate) fn advance(&mut self, caches: &mut [Cache], budget: &mut usize) -> mlx::Result<bool> {
        let mut first = true;
        while let Some(fill) = self.fills.front() {
            let bytes = fill.bytes();
            if *budget == 0 || (bytes > *budget && !first) {
                return Ok(false);
            }
            (*budget, first) = (budget.saturating_sub(bytes), false);
            let Some(Fill { cache, state }) = self.fills.pop_front() else { break };
            let cache = &mut caches[cache];
            match state {
                FillState::Parts(parts, length) => {
                    let parts = parts.each_ref().map(Vec::as_slice);
                    cache.as_kv().restore(parts, 0, length as i32, self.room as i32);
                }
                FillState::Snapshot(snapshot) => cache.restore(&snapshot, self.room as i32),
            }
            mlx::eval(cache.arrays())?;
        }
        Ok(true)
    }
}

impl Fill {
    /// Bytes to copy. Recurrent states are shared until they change.
    fn bytes(&self) -> usize {
        match &self.state {
            FillState::Parts(parts, _) => parts.iter().flatten().map(Array::nbytes).sum(),
            FillState::Snapshot(Snapshot::Recurrent(_)) => 0,
            FillState::Snapshot(snapshot) => snapshot.arrays().map(Array::nbytes).sum(),
        }
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
