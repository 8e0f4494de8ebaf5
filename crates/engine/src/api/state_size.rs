//! Bytes of the stored state of a sequence.

/// Upper bound on the length of a sequence.
const MOST_TOKENS: usize = 1 << 40;

/// Size of the state of a sequence's first tokens, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateSize {
    /// Bytes of each token, in layers that attend to everything before it.
    pub token: usize,
    /// Bytes of a snapshot of recurrences, at any position.
    pub snapshot: usize,
    /// Sliding windows: bytes per token, and the maximum tokens stored.
    pub windows: Vec<(usize, usize)>,
}

impl StateSize {
    /// Maximum bytes of the state of a sequence's first `tokens`.
    pub fn at(&self, tokens: usize) -> usize {
        let windows = self.windows.iter().map(|(token, most)| token * tokens.min(*most));
        self.token.saturating_mul(tokens) + self.snapshot + windows.sum::<usize>()
    }

    /// Maximum tokens whose state takes at most `bytes`.
    pub fn tokens_within(&self, bytes: usize) -> usize {
        let (mut fits, mut beyond) = (0, MOST_TOKENS);
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
        let growing = StateSize { token: 10, ..StateSize::default() };
        check(&growing, 0, 0);
        check(&growing, 99, 9);
        check(&growing, 100, 10);
        let hybrid = StateSize { token: 10, snapshot: 50, windows: vec![(5, 4)] };
        check(&hybrid, 49, 0);
        check(&hybrid, 65, 1);
        check(&hybrid, 110, 4);
        check(&hybrid, 119, 4);
        check(&hybrid, 120, 5);
        let recurrent = StateSize { snapshot: 50, ..StateSize::default() };
        check(&recurrent, 49, 0);
        check(&recurrent, 50, MOST_TOKENS - 1);
    }
}
