//! Constraints whose sets depend on the tokens so far, and which sometimes force tokens: one that
//! needs every token, and one whose sets are mostly known a token ahead.

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

/// Limits blocks of tokens as thinking is limited: a block lasts [`BLOCK`] tokens, or one token
/// more than a multiple of five; two forced tokens close it, and two free ones follow.
#[derive(Debug)]
pub(crate) struct Limited {
    /// Tokens that may come in a block, but for [`NEVER`].
    tokens: usize,
}

const BLOCK: usize = 6;
/// May not come in a block.
const NEVER: [u32; 2] = [33, 77];
const CLOSING: [u32; 2] = [41, 42];

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Block { tokens: usize, is_cut: bool },
    Closing(usize),
    Free(usize),
}

/// The part before the first token and after each of them.
struct Parts {
    tokens: usize,
    parts: Vec<Part>,
}

/// For a vocabulary of at least 250.
pub(crate) fn limited() -> Option<Arc<dyn Constraint>> {
    limited_to(250)
}

pub(crate) fn limited_to(tokens: usize) -> Option<Arc<dyn Constraint>> {
    Some(Arc::new(Limited { tokens }))
}

impl Constraint for Limited {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Parts { tokens: self.tokens, parts: vec![Part::Block { tokens: 0, is_cut: false }] })
    }

    fn is_light(&self) -> bool {
        true
    }
}

impl Part {
    fn allows(self, token: u32, tokens: usize) -> bool {
        match self {
            Part::Block { .. } => (token as usize) < tokens && !NEVER.contains(&token),
            Part::Closing(come) => token == CLOSING[come],
            Part::Free(_) => true,
        }
    }

    fn after(self, token: u32) -> Part {
        match self {
            Part::Block { tokens, is_cut } if is_cut || tokens + 1 == BLOCK => Part::Closing(0),
            Part::Block { tokens, .. } => Part::Block { tokens: tokens + 1, is_cut: token.is_multiple_of(5) },
            Part::Closing(0) => Part::Closing(1),
            Part::Closing(_) => Part::Free(0),
            Part::Free(0) => Part::Free(1),
            Part::Free(_) => Part::Block { tokens: 0, is_cut: false },
        }
    }

    fn allowed(self, tokens: usize) -> TokenSet {
        match self {
            Part::Free(_) => TokenSet::all(),
            _ => TokenSet::of(tokens, (0..tokens as u32).filter(|id| self.allows(*id, tokens))),
        }
    }
}

impl Parts {
    fn last(&self) -> Part {
        self.parts[self.parts.len() - 1]
    }
}

impl ConstraintState for Parts {
    fn push(&mut self, token: u32) -> Result<bool, String> {
        let (part, allowed) = (self.last(), self.last().allows(token, self.tokens));
        self.parts.extend(allowed.then(|| part.after(token)));
        Ok(allowed)
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        assert!(tokens < self.parts.len(), "more is rewound than was pushed");
        self.parts.truncate(self.parts.len() - tokens);
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        Ok(self.last().allowed(self.tokens))
    }

    fn forced(&mut self, max: usize) -> Result<Vec<u32>, String> {
        let come = if let Part::Closing(come) = self.last() { come } else { CLOSING.len() };
        Ok(CLOSING[come..].iter().copied().take(max).collect())
    }

    fn allowed_after_next(&mut self) -> Result<Option<TokenSet>, String> {
        // As thinking may end with its last token, that is waited for.
        let is_last = |tokens: usize, is_cut: bool| is_cut || tokens + 1 == BLOCK;
        let depends = matches!(self.last(), Part::Block { tokens, is_cut } if is_last(tokens, is_cut));
        Ok((!depends).then(|| self.last().after(1).allowed(self.tokens)))
    }
}
