//! Tokens that a constraint leaves no choice about.

use crate::{
    constrain::Next,
    speculate::{CONFIDENCE_BINS, Draft, DraftRequest, Drafter},
};

pub struct ForcedDrafter;

impl Drafter for ForcedDrafter {
    fn name(&self) -> &'static str {
        "forced"
    }

    fn is_free(&self) -> bool {
        true
    }

    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        [1.0; CONFIDENCE_BINS]
    }

    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        Ok(asked.iter().map(|asked| Draft { tokens: forced(asked), grade: 0 }).collect())
    }
}

fn forced(asked: &DraftRequest) -> Vec<u32> {
    let Some(constraint) = asked.constraint else { return vec![] };
    let mut history = asked.tokens[asked.prompt..].to_vec();
    let known = history.len();
    while history.len() - known < asked.depth {
        match constraint.next(&history) {
            Next::Exactly(tokens) if !tokens.is_empty() => history.extend(tokens),
            Next::OneOf(set) => match set.only() {
                Some(token) => history.push(token),
                None => break,
            },
            _ => break,
        }
    }
    history.truncate(known + asked.depth);
    history.split_off(known)
}
