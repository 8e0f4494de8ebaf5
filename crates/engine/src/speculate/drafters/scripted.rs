//! Drafts known answers with a chosen acceptance rate, for tests and measurements.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::speculate::{
    acceptance::CONFIDENCE_BINS,
    drafter::{Draft, DraftRequest, Drafter, DrafterInfo},
};

/// Answers and acceptance rate of a [`ScriptedDrafter`].
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Prompts, and the answers of plain decoding.
    pub answers: Vec<(Vec<u32>, Vec<u32>)>,
    /// Probability that a drafted token is right if those before it are.
    pub acceptance_rate: f64,
    /// Tokens are below this.
    pub vocab_size: u32,
    /// Keys the random errors.
    pub seed: u64,
}

pub(crate) struct ScriptedDrafter(pub Script);

impl Drafter for ScriptedDrafter {
    fn info(&self) -> DrafterInfo {
        DrafterInfo { prior: [self.0.acceptance_rate; CONFIDENCE_BINS], ..DrafterInfo::new("scripted") }
    }

    fn propose(&mut self, requests: &mut [DraftRequest]) -> mlx::Result<Vec<Draft>> {
        let draft = |request: &DraftRequest| Draft { tokens: self.0.draft(request), confidence_bin: 0 };
        Ok(requests.iter().map(draft).collect())
    }
}

impl Script {
    fn draft(&self, request: &DraftRequest) -> Vec<u32> {
        let (prompt, output) = request.tokens.split_at(request.prompt);
        let answer = self.answers.iter().find(|(known, _)| known == prompt).map(|(_, answer)| answer);
        (output.len()..output.len() + request.depth)
            .map(|at| {
                let mut hash = DefaultHasher::new();
                (self.seed, prompt, at).hash(&mut hash);
                let random = hash.finish();
                let other = (random >> 32) as u32 % self.vocab_size;
                match answer.and_then(|answer| answer.get(at)).copied() {
                    Some(right) if (random as u32) as f64 / 2f64.powi(32) < self.acceptance_rate => right,
                    Some(right) if right == other => (other + 1) % self.vocab_size,
                    _ => other,
                }
            })
            .collect()
    }
}
