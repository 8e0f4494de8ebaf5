//! Drafts the tokens that a constraint leaves no choice about.

use crate::{
    api::Next,
    speculate::{
        acceptance::CONFIDENCE_BINS,
        drafter::{Draft, DraftRequest, Drafter, DrafterInfo},
    },
};

pub struct ForcedDrafter;

impl Drafter for ForcedDrafter {
    fn info(&self) -> DrafterInfo {
        DrafterInfo { is_free: true, prior: [1.0; CONFIDENCE_BINS], ..DrafterInfo::new("forced") }
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let draft = |request: &DraftRequest| Draft { tokens: forced(request), confidence_bin: 0 };
        Ok(requests.iter().map(draft).collect())
    }
}

fn forced(request: &DraftRequest) -> Vec<u32> {
    let Some(constraint) = request.constraint else { return vec![] };
    let mut output = request.tokens[request.prompt..].to_vec();
    let known = output.len();
    while output.len() - known < request.depth {
        match constraint.next(&output) {
            Next::Exactly(tokens) if !tokens.is_empty() => output.extend(tokens),
            Next::OneOf(set) => match set.only() {
                Some(token) => output.push(token),
                None => break,
            },
            _ => break,
        }
    }
    output.truncate(known + request.depth);
    output.split_off(known)
}
