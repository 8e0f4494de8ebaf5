//! A drafter that knows the answer and is right as often as it is told, for tests and measurements.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::speculate::{CONFIDENCE_BINS, Draft, DraftRequest, Drafter};

/// What a [`ScriptedDrafter`] drafter knows.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Prompts, and what plain decoding answers.
    pub answers: Vec<(Vec<u32>, Vec<u32>)>,
    /// How often a token it proposes is the right one, if those before it are: between 0 and 1.
    pub right: f64,
    /// Tokens are below this.
    pub vocab_size: u32,
    pub seed: u64,
}

pub struct ScriptedDrafter(pub Script);

impl Drafter for ScriptedDrafter {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn prior(&self) -> [f64; CONFIDENCE_BINS] {
        [self.0.right; CONFIDENCE_BINS]
    }

    fn propose(&mut self, asked: &[DraftRequest]) -> mlx::Result<Vec<Draft>> {
        Ok(asked.iter().map(|asked| Draft { tokens: self.0.draft(asked), grade: 0 }).collect())
    }
}

impl Script {
    fn draft(&self, asked: &DraftRequest) -> Vec<u32> {
        let (prompt, answer) = asked.tokens.split_at(asked.prompt);
        let known = self.answers.iter().find(|(known, _)| known == prompt);
        (answer.len()..answer.len() + asked.depth)
            .map(|at| {
                let mut hash = DefaultHasher::new();
                (self.seed, prompt, at).hash(&mut hash);
                let random = hash.finish();
                let other = (random >> 32) as u32 % self.vocab_size;
                let right = known.and_then(|(_, answer)| answer.get(at)).copied();
                match right {
                    Some(right) if (random as u32) as f64 / 2f64.powi(32) < self.right => right,
                    Some(right) if right == other => (other + 1) % self.vocab_size,
                    _ => other,
                }
            })
            .collect()
    }
}
