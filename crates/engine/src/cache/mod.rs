//! Per-layer state of a sequence: keys and values, or a recurrent state. Rejected draft tokens of
//! the last step can be rewound.

mod guard;
mod kv;

use mlx::Array;
use nn::{KvBuffer, Recurrence};

pub(crate) use self::{
    guard::CacheGuard,
    kv::{Kv, REWINDABLE},
};

/// State of one layer for one sequence. Shapes and dtypes are those of the layer's first inputs.
pub(crate) enum Cache {
    Kv(Kv),
    Recurrent(Recurrence),
}

/// Copies of a window's keys and values `[kv_heads, length - start, dim]`.
#[derive(Clone)]
pub(crate) struct Window {
    keys: Option<Array>,
    values: Option<Array>,
    /// Position of the first token, a multiple of the attention block size.
    start: i32,
    length: i32,
}

/// The state of one layer at one position, if it cannot be cut out of a later state.
#[derive(Clone)]
pub(crate) enum Snapshot {
    Window(Window),
    Recurrent(Recurrence),
}

/// A window no longer has the tokens to rewind to; the sequence must be recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowEvicted;

impl Cache {
    /// For full attention, also over latents.
    pub(crate) fn kv() -> Cache {
        Cache::Kv(Kv::new(None))
    }

    /// For sliding-window attention over `window` keys, including the query's own.
    pub(crate) fn window(window: i32) -> Cache {
        Cache::Kv(Kv::new(Some(window)))
    }

    /// For recurrences and convolutions.
    pub(crate) fn recurrent() -> Cache {
        Cache::Recurrent(Recurrence::default())
    }

    /// Removes the last `tokens`, all of them uncommitted tokens of the last step. Copies no state.
    ///
    /// # Errors
    /// A window has dropped tokens that the next query attends to; the cache is unchanged.
    ///
    /// # Panics
    /// If a recurrence has committed them.
    #[track_caller]
    pub(crate) fn rewind(&mut self, tokens: usize) -> Result<(), WindowEvicted> {
        match self {
            Cache::Kv(kv) => kv.rewind(tokens as i32),
            Cache::Recurrent(recurrent) => {
                recurrent.rewind(tokens as i32);
                Ok(())
            }
        }
    }

    /// The keys and values of full attention, where the state at a position is part of any later
    /// one.
    pub(crate) fn as_full_attention(&self) -> Option<&Kv> {
        match self {
            Cache::Kv(kv) if kv.window().is_none() => Some(kv),
            _ => None,
        }
    }

    /// The state before the last `ahead` tokens, which must be uncommitted; `None` for
    /// [full attention](Cache::as_full_attention).
    ///
    /// # Panics
    /// If those tokens are committed.
    #[track_caller]
    pub(crate) fn snapshot(&self, ahead: usize) -> Option<Snapshot> {
        match self {
            Cache::Kv(kv) => kv.window().is_some().then(|| Snapshot::Window(kv.snapshot(ahead as i32))),
            Cache::Recurrent(recurrent) => {
                let mut recurrent = recurrent.clone();
                recurrent.rewind(ahead as i32);
                Some(Snapshot::Recurrent(recurrent.committed()))
            }
        }
    }

    /// Restores a snapshot, with capacity for `room` more tokens.
    ///
    /// # Panics
    /// If it is a snapshot of another kind of cache.
    #[track_caller]
    pub(crate) fn restore(&mut self, snapshot: &Snapshot, room: i32) {
        match (self, snapshot) {
            (Cache::Kv(kv), Snapshot::Window(window)) => {
                let sides = [window.keys.as_slice(), window.values.as_slice()];
                let buffers = sides.map(|side| KvBuffer::concatenate(side, room));
                kv.restore(buffers, window.start, window.length);
            }
            (Cache::Recurrent(recurrent), Snapshot::Recurrent(state)) => *recurrent = state.clone(),
            _ => panic!("snapshot of another kind of cache"),
        }
    }

    /// Arrays to evaluate with the step that wrote them.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let arrays = match self {
            Cache::Kv(kv) => kv.arrays(),
            Cache::Recurrent(recurrent) => recurrent.arrays(),
        };
        arrays.into_iter().flatten()
    }

    /// # Panics
    /// If the cache is of the other kind.
    #[track_caller]
    pub(crate) fn as_kv(&mut self) -> &mut Kv {
        match self {
            Cache::Kv(kv) => kv,
            Cache::Recurrent(_) => panic!("attention on a recurrent layer's cache"),
        }
    }

    /// # Panics
    /// If the cache is of the other kind.
    #[track_caller]
    pub(crate) fn as_recurrent(&mut self) -> &mut Recurrence {
        match self {
            Cache::Recurrent(recurrent) => recurrent,
            Cache::Kv(_) => panic!("recurrence on an attention layer's cache"),
        }
    }
}

impl Snapshot {
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.parts().1.into_iter().flatten()
    }

    /// First position and end of a window, and arrays.
    pub(crate) fn parts(&self) -> (Option<[i32; 2]>, [Option<&Array>; 2]) {
        match self {
            Snapshot::Window(window) => {
                (Some([window.start, window.length]), [window.keys.as_ref(), window.values.as_ref()])
            }
            Snapshot::Recurrent(recurrent) => (None, recurrent.arrays()),
        }
    }

    /// Inverse of [`parts`](Snapshot::parts).
    pub(crate) fn from_parts(window: Option<[i32; 2]>, arrays: [Option<Array>; 2]) -> Snapshot {
        match window {
            Some([start, length]) => {
                let [keys, values] = arrays;
                Snapshot::Window(Window { keys, values, start, length })
            }
            None => Snapshot::Recurrent(Recurrence::from_arrays(arrays)),
        }
    }
}

#[cfg(test)]
mod tests;
