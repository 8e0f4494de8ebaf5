//! What is stored of a sequence: plain arrays, their kinds and lengths, so that they can be written down.

use std::{cell::Cell, collections::VecDeque};

use mlx::Array;

use super::tree::{Span, Weight};
use crate::cache::{Cache, Snapshot};

/// Keys and values (or latents) of a run of tokens, of every layer that attends to everything before it, in the order of
/// the model's caches: `[kv_heads, tokens, dim]` each.
#[derive(Clone)]
pub struct Run {
    pub layers: Vec<[Option<Array>; 2]>,
    /// Not what the model computes: it was compressed, or computed behind what was.
    pub lossy: bool,
    /// Read from a disk, and not used since.
    pub from_disk: Cell<bool>,
}

/// The state of all other layers behind one position, in the order of the model's caches.
#[derive(Clone)]
pub struct Checkpoint {
    pub layers: Vec<Snapshot>,
    /// As of a run.
    pub lossy: bool,
    pub from_disk: Cell<bool>,
}

/// Stored state on its way into the caches of a sequence: copying all of a long prefix at once would hold up everybody
/// else's step.
pub struct StateRestore {
    fills: VecDeque<Fill>,
    room: usize,
}

/// What goes into one cache.
struct Fill {
    cache: usize,
    state: FillState,
}

enum FillState {
    /// Keys and values in parts, one behind the other, of so many tokens.
    Parts([Vec<Array>; 2], usize),
    Snapshot(Snapshot),
}

impl Run {
    /// Copies of tokens `from..to`.
    #[track_caller]
    pub fn copy(caches: &[Cache], [from, to]: [usize; 2], lossy: bool) -> Run {
        let growing = caches.iter().filter_map(Cache::as_full_attention);
        Run::new(growing.map(|kv| kv.copy(from as i32, to as i32)).collect(), lossy)
    }

    pub fn new(layers: Vec<[Option<Array>; 2]>, lossy: bool) -> Run {
        Run { layers, lossy, from_disk: Cell::new(false) }
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flatten().flatten()
    }

    /// Tokens `from..to`; in memory of their own if these are not all.
    #[track_caller]
    pub fn part(&self, from: usize, to: usize) -> Run {
        let part = |array: &Array| match from == 0 && to as i32 == array.dim(1) {
            true => array.clone(),
            false => nn::copy_tokens(array, from as i32, to as i32),
        };
        let layers = self.layers.iter().map(|sides| sides.each_ref().map(|side| side.as_ref().map(part)));
        Run { layers: layers.collect(), lossy: self.lossy, from_disk: self.from_disk.clone() }
    }
}

impl StateRestore {
    /// What `runs` hold of their first so many tokens, one run behind the other, and a checkpoint behind all of them, for
    /// `caches` that are to have room for `room` tokens more.
    #[track_caller]
    pub fn new(
        runs: &[(&Run, usize)],
        checkpoint: Option<&Checkpoint>,
        caches: &[Cache],
        room: usize,
    ) -> StateRestore {
        let length: usize = runs.iter().map(|(_, tokens)| tokens).sum();
        let parts = |layer: usize, side: usize| {
            let part = |(run, tokens): &(&Run, usize)| {
                let array = run.layers[layer][side].as_ref()?;
                let whole = *tokens as i32 == array.dim(1);
                Some(if whole { array.clone() } else { array.slice(1, 0, *tokens as i32) })
            };
            runs.iter().filter_map(part).collect::<Vec<_>>()
        };
        let (mut growing, mut others) = (0, checkpoint.into_iter().flat_map(|kept| &kept.layers));
        let mut fills = VecDeque::new();
        for (cache, own) in caches.iter().enumerate() {
            let state = if own.as_full_attention().is_some() {
                growing += 1;
                (length > 0).then(|| FillState::Parts([parts(growing - 1, 0), parts(growing - 1, 1)], length))
            } else {
                others.next().cloned().map(FillState::Snapshot)
            };
            fills.extend(state.map(|state| Fill { cache, state }));
        }
        StateRestore { fills, room }
    }

    /// Fills caches until `left` bytes are copied, at least one of them unless that is 0; `true` once all are filled.
    ///
    /// # Errors
    /// There is no memory for it.
    #[track_caller]
    pub fn advance(&mut self, caches: &mut [Cache], left: &mut usize) -> mlx::Result<bool> {
        let mut first = true;
        while let Some(fill) = self.fills.front() {
            let bytes = fill.bytes();
            if *left == 0 || (bytes > *left && !first) {
                return Ok(false);
            }
            (*left, first) = (left.saturating_sub(bytes), false);
            let Some(Fill { cache, state }) = self.fills.pop_front() else { break };
            let cache = &mut caches[cache];
            match state {
                FillState::Parts(parts, length) => {
                    let parts = parts.each_ref().map(Vec::as_slice);
                    cache.as_kv().restore(parts, 0, length as i32, self.room as i32);
                }
                FillState::Snapshot(kept) => cache.restore(&kept, self.room as i32),
            }
            mlx::eval(cache.arrays())?;
        }
        Ok(true)
    }
}

impl Fill {
    /// To be copied: recurrent states are shared until they change.
    fn bytes(&self) -> usize {
        match &self.state {
            FillState::Parts(parts, _) => parts.iter().flatten().map(Array::nbytes).sum(),
            FillState::Snapshot(Snapshot::Recurrent(_)) => 0,
            FillState::Snapshot(kept) => kept.arrays().map(Array::nbytes).sum(),
        }
    }
}

impl Span for Run {
    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    fn split(self, at: usize) -> [Run; 2] {
        let half = |from: Option<i32>, to: Option<i32>| {
            let cut = |array: &Array| nn::copy_tokens(array, from.unwrap_or(0), to.unwrap_or(array.dim(1)));
            let layers = self.layers.iter().map(|sides| sides.each_ref().map(|side| side.as_ref().map(cut)));
            Run { layers: layers.collect(), lossy: self.lossy, from_disk: self.from_disk.clone() }
        };
        let at = Some(at as i32);
        let halves = [half(None, at), half(at, None)];
        // If this fails, so does whatever uses the halves later.
        let _ = mlx::async_eval(halves.iter().flat_map(Run::arrays));
        halves
    }
}

impl Checkpoint {
    /// The state `back` tokens before the end of what `caches` hold, all of which were ahead in the last step.
    #[track_caller]
    pub fn keep(caches: &[Cache], back: usize, lossy: bool) -> Checkpoint {
        let layers = caches.iter().filter_map(|cache| cache.snapshot(back)).collect();
        Checkpoint { layers, lossy, from_disk: Cell::new(false) }
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(Snapshot::arrays)
    }
}

impl Weight for Checkpoint {
    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}
