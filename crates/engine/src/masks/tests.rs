use std::{thread, time::Instant};

use super::{workers::MaskWorkers, *};
use crate::api::ConstraintState;

/// Allows each token once.
#[derive(Debug)]
struct Once {
    /// The time that a set takes.
    delay: Duration,
    /// Fails when it holds this many tokens.
    fails_at: usize,
}

struct Used(Vec<u32>, Duration, usize);

impl Constraint for Once {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Used(vec![], self.delay, self.fails_at))
    }
}

impl ConstraintState for Used {
    fn push(&mut self, token: u32) -> Result<bool, String> {
        let new = !self.0.contains(&token);
        self.0.extend(new.then_some(token));
        Ok(new)
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        self.0.truncate(self.0.len().checked_sub(tokens).ok_or("too far")?);
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        thread::sleep(self.1);
        match self.0.len() == self.2 {
            true => Err("full".into()),
            false => Ok(TokenSet::of(8, (0..8).filter(|id| !self.0.contains(id)))),
        }
    }

    fn forced(&mut self, max: usize) -> Result<Vec<u32>, String> {
        Ok((0..8).filter(|id| self.0.len() == 7 && !self.0.contains(id)).take(max).collect())
    }
}

fn masks(delay: Duration, fails_at: usize, threads: usize) -> SequenceMasks {
    SequenceMasks::new(Arc::new(Once { delay, fails_at }), MaskWorkers::with_threads(threads))
}

fn all_but(used: &[u32]) -> TokenSet {
    TokenSet::of(8, (0..8).filter(|id| !used.contains(id)))
}

#[test]
fn sets_after_tokens_and_drafts_are_those_of_the_constraint() {
    for threads in [0, 1, 3] {
        let mut masks = masks(Duration::ZERO, 99, threads);
        masks.follow(&[]);
        assert_eq!(masks.get().sets, [all_but(&[])]);
        masks.follow(&[3]);
        assert_eq!(masks.draft(&[1, 2, 1, 5]), 2, "the third is used");
        let expected = [all_but(&[3]), all_but(&[3, 1]), all_but(&[3, 1, 2])];
        assert_eq!(masks.get().sets, expected);
        assert_eq!(masks.get().sets, expected, "a second call gives the same sets");
        // One drafted token was right.
        masks.follow(&[3, 1, 4]);
        assert_eq!(masks.get().sets, [all_but(&[3, 1, 4])]);
        masks.follow(&[3, 1, 4, 0, 2, 5, 6]);
        assert_eq!(masks.forced(9), [7]);
        assert_eq!(masks.get(), Masks { sets: vec![all_but(&[0, 1, 2, 3, 4, 5, 6])], error: None });
    }
}

#[test]
fn error_in_a_draft_is_dropped_with_the_draft() {
    let mut masks = masks(Duration::ZERO, 2, 1);
    masks.follow(&[]);
    assert_eq!(masks.draft(&[1, 2, 3]), 3);
    let nothing = TokenSet::of(0, []);
    let sets = vec![all_but(&[]), all_but(&[1]), nothing.clone(), nothing.clone()];
    assert_eq!(masks.get(), Masks { sets, error: Some("full".into()) });
    // Nothing was generated: the sequence missed a step, and drafts anew.
    assert_eq!(masks.draft(&[4]), 1);
    assert_eq!(masks.get(), Masks { sets: vec![all_but(&[]), all_but(&[4])], error: None });
    masks.follow(&[1]);
    assert_eq!(masks.get(), Masks { sets: vec![all_but(&[1])], error: None });
    masks.follow(&[1, 5]);
    assert_eq!(masks.get(), Masks { sets: vec![nothing], error: Some("full".into()) });
}

#[test]
fn token_that_was_not_allowed_is_an_error() {
    let mut masks = masks(Duration::ZERO, 99, 1);
    masks.follow(&[]);
    masks.get();
    masks.follow(&[4, 4]);
    let error = masks.get().error.expect("an error");
    assert!(error.contains("token 4"), "{error}");
}

#[test]
fn sequence_with_slow_sets_is_late_until_they_are_computed() {
    let mut masks = masks(SLOW * 20, 99, 1);
    masks.follow(&[]);
    masks.order();
    assert!(!masks.is_late(), "nothing is known yet");
    let started = Instant::now();
    masks.get();
    assert!(started.elapsed() >= SLOW * 10 && !masks.is_late());
    masks.follow(&[2]);
    masks.order();
    assert!(masks.is_late());
    while masks.is_late() {
        thread::yield_now();
    }
    assert_eq!(masks.get().sets, [all_but(&[2])]);
}
