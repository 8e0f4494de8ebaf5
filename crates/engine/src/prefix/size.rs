//! Bytes of a sequence's stored state, from the shapes of a model's caches.

use mlx::Array;
use nn::KEY_BLOCK;

use crate::cache::{Cache, REWINDABLE};

/// Upper bound of any sequence's length.
const MAX_TOKENS: usize = 1 << 40;

/// Bytes of the state of a sequence's first tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateSize {
    /// Per token, in full-attention layers.
    pub token: usize,
    /// Of a snapshot of all recurrences, at any position.
    pub snapshot: usize,
    /// Sliding windows: bytes per token, and maximum tokens.
    pub windows: Vec<(usize, usize)>,
}

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

    /// Maximum bytes of the state of a sequence's first `tokens`.
    pub fn at(&self, tokens: usize) -> usize {
        let windows = self.windows.iter().map(|(token, most)| token * tokens.min(*most));
        self.token.saturating_mul(tokens) + self.snapshot + windows.sum::<usize>()
    }

    /// Maximum tokens whose state fits into `bytes`.
    pub fn tokens_within(&self, bytes: usize) -> usize {
        let (mut fits, mut beyond) = (0, MAX_TOKENS);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            *(if self.at(middle) <= bytes { &mut fits } else { &mut beyond }) = middle;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_within_a_budget_are_the_most_that_fit() {
        let check = |size: &StateSize, bytes: usize, expected: usize| {
            assert_eq!(size.tokens_within(bytes), expected, "{size:?} in {bytes}");
        };
        let full_attention = StateSize { token: 10, ..StateSize::default() };
        check(&full_attention, 0, 0);
        check(&full_attention, 99, 9);
        check(&full_attention, 100, 10);
        let hybrid = StateSize { token: 10, snapshot: 50, windows: vec![(5, 4)] };
        check(&hybrid, 49, 0);
        check(&hybrid, 65, 1);
        check(&hybrid, 110, 4);
        check(&hybrid, 119, 4);
        check(&hybrid, 120, 5);
        let recurrent = StateSize { snapshot: 50, ..StateSize::default() };
        check(&recurrent, 49, 0);
        check(&recurrent, 50, MAX_TOKENS - 1);
    }
}
