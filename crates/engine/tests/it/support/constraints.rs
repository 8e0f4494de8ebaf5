//! A constraint whose sets depend on every token so far, and which sometimes forces tokens.

use std::sync::Arc;

use super::{Constraint, ConstraintState, TokenSet};

/// Allows few tokens at a time, of a vocabulary of at least 250. The poison of the engine's own
/// tests is not among them.
#[derive(Debug)]
pub(crate) struct Winding;

/// A hash of the tokens so far, before the first and after each of them.
struct Winds(Vec<u64>);

pub(crate) fn winding() -> Option<Arc<dyn Constraint>> {
    Some(Arc::new(Winding))
}

impl Constraint for Winding {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Winds(vec![1]))
    }
}

impl Winds {
    fn last(&self) -> u64 {
        self.0[self.0.len() - 1]
    }

    fn allows(at: u64, token: u32) -> bool {
        let is_known = (20..250).contains(&token);
        match at % 3 {
            0 => token == Winds::forced(at),
            // At least one token is allowed.
            _ if token == 77 => true,
            _ => is_known && (at >> 8).wrapping_mul(u64::from(token) | 1) >> 7 & 7 == 0,
        }
    }

    fn forced(at: u64) -> u32 {
        20 + (at >> 16) as u32 % 200
    }

    fn after(at: u64, token: u32) -> u64 {
        (at ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 3
    }
}

impl ConstraintState for Winds {
    fn push(&mut self, token: u32) -> Result<bool, String> {
        let (at, allowed) = (self.last(), Winds::allows(self.last(), token));
        self.0.extend(allowed.then(|| Winds::after(at, token)));
        Ok(allowed)
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        assert!(tokens < self.0.len(), "more is rewound than was pushed");
        self.0.truncate(self.0.len() - tokens);
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        Ok(TokenSet::of(250, (0..250).filter(|&id| Winds::allows(self.last(), id))))
    }

    fn forced(&mut self, max: usize) -> Result<Vec<u32>, String> {
        let (mut at, mut tokens) = (self.last(), vec![]);
        while at % 3 == 0 && tokens.len() < max {
            let token = Winds::forced(at);
            tokens.push(token);
            at = Winds::after(at, token);
        }
        Ok(tokens)
    }
}
