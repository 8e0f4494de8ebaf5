//! Bytes of a sequence's stored state, from the shapes of a model's caches.

use mlx::Array;
use nn::KEY_BLOCK;

use crate::{
    api::StateSize,
    cache::{Cache, REWINDABLE},
};

impl StateSize {
    /// `None` for caches that are still empty.
    pub(crate) fn of(caches: &[Cache]) -> Option<StateSize> {
        let mut size = StateSize::default();
        for cache in caches {
            let token = |array: &Array| array.nbytes() / array.dim(1).max(1) as usize;
            match cache {
                Cache::Recurrent(_) => size.snapshot += cache.arrays().map(Array::nbytes).sum::<usize>(),
                Cache::Kv(kv) => match kv.window() {
                    None => size.token += cache.arrays().map(token).sum::<usize>(),
                    Some(window) => {
                        let most = (window + REWINDABLE + KEY_BLOCK) as usize;
                        size.windows.push((cache.arrays().map(token).sum(), most));
                    }
                },
            }
        }
        (size.at(1) > 0).then_some(size)
    }
}
