//! What a sequence carries from token to token, per layer: keys and values, or a recurrent state.
//!
//! Each cache can be rewound by what the last step computed ahead: tokens of a draft that was wrong.

mod guard;
mod kv;

use mlx::Array;
use nn::Recurrence;

pub use self::{
    guard::CacheGuard,
    kv::{Kv, REWINDABLE},
};

/// One layer's state of one sequence. It takes shapes and types from what the layer first puts in.
pub enum Cache {
    Kv(Kv),
    Recurrent(Recurrence),
}

/// What a window holds at one point: copies `[kv_heads, length - start, dim]`.
#[derive(Clone)]
pub struct Window {
    keys: Option<Array>,
    values: Option<Array>,
    /// Position of the first token: the start of a whole attention block.
    start: i32,
    length: i32,
}

/// The state of a cache at one point, where that cannot be cut out of a later state; for sequences to come.
#[derive(Clone)]
pub enum Snapshot {
    Window(Window),
    Recurrent(Recurrence),
}

/// A window has moved past what is needed: tokens it dropped do not come back, so the sequence has to be computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEvicted;

impl Cache {
    /// Of a layer that attends to everything before it, or to latents of everything.
    pub fn kv() -> Cache {
        Cache::Kv(Kv::new(None))
    }

    /// Of a layer whose queries see `window` keys, their own included: older ones are dropped in time.
    pub fn window(window: i32) -> Cache {
        Cache::Kv(Kv::new(Some(window)))
    }

    /// Of a layer that sees the past through a convolution, a state, or both.
    pub fn recurrent() -> Cache {
        Cache::Recurrent(Recurrence::default())
    }

    /// Forgets the last `tokens`, all of which were ahead in the last step. No state is copied for that.
    ///
    /// # Errors
    /// A window has dropped tokens that the first query from then on sees; the cache is left as it was.
    ///
    /// # Panics
    /// If a recurrence has taken them in already: a bug of ours.
    #[track_caller]
    pub fn rewind(&mut self, tokens: usize) -> Result<(), WindowEvicted> {
        match self {
            Cache::Kv(kv) => kv.rewind(tokens as i32),
            Cache::Recurrent(recurrent) => {
                recurrent.rewind(tokens as i32);
                Ok(())
            }
        }
    }

    /// Keys and values of everything before it: the state at each position is a part of any later one.
    pub fn as_full_attention(&self) -> Option<&Kv> {
        match self {
            Cache::Kv(kv) if kv.window().is_none() => Some(kv),
            _ => None,
        }
    }

    /// The state `back` tokens before this point, for sequences to come; `None` of a cache that is
    /// [growing](Cache::as_full_attention).
    ///
    /// # Panics
    /// If those tokens were not ahead in the last step: a bug of ours.
    #[track_caller]
    pub fn snapshot(&self, back: usize) -> Option<Snapshot> {
        match self {
            Cache::Kv(kv) => kv.window().is_some().then(|| Snapshot::Window(kv.snapshot(back as i32))),
            Cache::Recurrent(recurrent) => {
                let mut recurrent = recurrent.clone();
                recurrent.rewind(back as i32);
                Some(Snapshot::Recurrent(recurrent.committed()))
            }
        }
    }

    /// Goes on from a kept state, with room for `room` tokens before anything has to move.
    ///
    /// # Panics
    /// If it is another kind of cache's: a bug of ours.
    #[track_caller]
    pub fn restore(&mut self, kept: &Snapshot, room: i32) {
        match (self, kept) {
            (Cache::Kv(kv), Snapshot::Window(window)) => {
                let parts = [window.keys.as_slice(), window.values.as_slice()];
                kv.restore(parts, window.start, window.length, room);
            }
            (Cache::Recurrent(recurrent), Snapshot::Recurrent(before)) => *recurrent = before.clone(),
            _ => panic!("state of another kind of cache"),
        }
    }

    /// The arrays a step leaves behind, to be evaluated with it.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let arrays = match self {
            Cache::Kv(kv) => kv.arrays(),
            Cache::Recurrent(recurrent) => recurrent.arrays(),
        };
        arrays.into_iter().flatten()
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
    pub fn as_recurrent(&mut self) -> &mut Recurrence {
        match self {
            Cache::Recurrent(recurrent) => recurrent,
            Cache::Kv(_) => panic!("recurrence on an attention layer's cache"),
        }
    }
}

impl Snapshot {
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.parts().1.into_iter().flatten()
    }

    /// What it consists of: the first position and the end of a window, and arrays.
    pub fn parts(&self) -> (Option<[i32; 2]>, [Option<&Array>; 2]) {
        match self {
            Snapshot::Window(window) => {
                (Some([window.start, window.length]), [window.keys.as_ref(), window.values.as_ref()])
            }
            Snapshot::Recurrent(recurrent) => (None, recurrent.arrays()),
        }
    }

    /// From its [parts](Snapshot::parts).
    pub fn from_parts(window: Option<[i32; 2]>, arrays: [Option<Array>; 2]) -> Snapshot {
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
