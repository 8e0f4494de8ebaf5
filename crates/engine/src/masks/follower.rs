//! A constraint's state beside the tokens of its sequence: generated ones, and a draft that may be
//! taken back.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::Masks;
use crate::api::{Constraint, ConstraintState, TokenSet};

pub(super) struct Follower {
    constraint: Arc<dyn Constraint>,
    /// With all of `generated` and `draft`; `None`: it is built when it is needed.
    state: Option<Box<dyn ConstraintState>>,
    generated: Vec<u32>,
    draft: Vec<u32>,
    /// Why the last command failed, after which its other calls are not made. The next command
    /// begins without it: a draft that fails may not be what is generated.
    error: Option<String>,
    /// Whether a command did not return; nothing is called until more tokens are generated.
    broken: bool,
}

impl Follower {
    pub(super) fn new(constraint: Arc<dyn Constraint>) -> Follower {
        Follower { constraint, state: None, generated: vec![], draft: vec![], error: None, broken: false }
    }

    /// Appends generated tokens, which replace the draft as far as they differ from it.
    pub(super) fn follow(&mut self, tokens: &[u32]) {
        (self.error, self.broken) = (None, false);
        let common = self.draft.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.truncate_draft(common);
        self.draft.clear();
        let current = self.state.is_some();
        self.generated.extend(tokens);
        if current {
            self.with_state(|state| push_all(state, &tokens[common..]));
        }
    }

    /// At most `max` tokens that must come next.
    pub(super) fn forced(&mut self, max: usize) -> Vec<u32> {
        self.begin();
        self.with_state(|state| state.forced(max)).unwrap_or_default()
    }

    /// The tokens allowed after the token that follows the generated ones, if they do not depend on
    /// it. An error is left to [`masks`](Follower::masks), which meets it again.
    pub(super) fn after_next(&mut self) -> Option<TokenSet> {
        self.begin();
        self.truncate_draft(0);
        self.with_state(|state| state.allowed_after_next()).flatten()
    }

    /// Replaces the draft; returns how many of its tokens are allowed.
    pub(super) fn draft(&mut self, tokens: &[u32]) -> usize {
        self.begin();
        self.truncate_draft(0);
        let allowed = tokens.iter().take_while(|token| self.push_draft(**token)).count();
        debug_assert_eq!(allowed, self.draft.len());
        allowed
    }

    /// Tokens allowed after the generated tokens and after each drafted one.
    pub(super) fn masks(&mut self) -> Masks {
        self.begin();
        let draft = self.draft.clone();
        self.truncate_draft(0);
        let mut sets: Vec<TokenSet> = self.with_state(|state| state.allowed()).into_iter().collect();
        for &token in &draft {
            if sets.is_empty() || !self.push_draft(token) {
                break;
            }
            sets.extend(self.with_state(|state| state.allowed()));
        }
        sets.resize(1 + draft.len(), TokenSet::of(0, []));
        Masks { sets, error: self.error.clone() }
    }

    /// Records that a call did not return.
    pub(super) fn fail(&mut self, message: String) {
        (self.error, self.broken, self.state) = (Some(message), true, None);
    }

    /// Begins a command.
    fn begin(&mut self) {
        if !self.broken {
            self.error = None;
        }
    }

    fn push_draft(&mut self, token: u32) -> bool {
        let pushed = self.with_state(|state| state.push(token)) == Some(true);
        self.draft.extend(pushed.then_some(token));
        pushed
    }

    fn truncate_draft(&mut self, length: usize) {
        let removed = self.draft.len() - length;
        self.draft.truncate(length);
        if removed > 0 && self.state.is_some() && self.with_state(|state| state.rewind(removed)).is_none() {
            // It is built anew.
            self.begin();
        }
    }

    /// Returns `None` after an error or panic of the constraint; earlier results stay valid.
    fn with_state<T>(
        &mut self,
        work: impl FnOnce(&mut dyn ConstraintState) -> Result<T, String>,
    ) -> Option<T> {
        if self.error.is_some() {
            return None;
        }
        let build = |follower: &Follower| {
            let mut state = follower.constraint.start();
            push_all(&mut *state, &follower.generated)?;
            push_all(&mut *state, &follower.draft)?;
            Ok::<_, String>(state)
        };
        let state = self.state.take();
        let worked = || {
            let mut state = state.map_or_else(|| build(self), Ok)?;
            Ok::<_, String>((work(&mut *state)?, state))
        };
        let worked = catch_unwind(AssertUnwindSafe(worked));
        match worked.unwrap_or_else(|panic| Err(mlx::panic_message(&*panic))) {
            Ok((result, state)) => {
                self.state = Some(state);
                Some(result)
            }
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

fn push_all(state: &mut dyn ConstraintState, tokens: &[u32]) -> Result<(), String> {
    for &token in tokens {
        if !state.push(token)? {
            return Err(format!("it does not allow token {token}, which was generated"));
        }
    }
    Ok(())
}
