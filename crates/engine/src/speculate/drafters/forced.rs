//! Drafts the tokens that a constraint leaves no choice about.

use crate::speculate::{
    acceptance::CONFIDENCE_BINS,
    drafter::{Draft, DraftRequest, Drafter, DrafterInfo},
};

pub(crate) struct ForcedDrafter;

impl Drafter for ForcedDrafter {
    fn info(&self) -> DrafterInfo {
        DrafterInfo { is_free: true, prior: [1.0; CONFIDENCE_BINS], ..DrafterInfo::new("forced") }
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let draft = |request: &DraftRequest| {
            let depth = request.depth.min(request.forced.len());
            Draft { tokens: request.forced[..depth].to_vec(), confidence_bin: 0 }
        };
        Ok(requests.iter().map(draft).collect())
    }
}
