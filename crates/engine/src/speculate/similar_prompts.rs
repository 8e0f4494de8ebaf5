//! Acceptance and lengths of past answers by prompt prefix: requests with the same instructions, or
//! turns of one conversation, accept similar drafts.

use std::collections::VecDeque;

use super::acceptance::DrafterRecord;
use crate::prefix::{OwnedPrefixKey, PrefixKey};

/// Tokens of a prompt that are compared.
const PREFIX: usize = 64;
/// Minimum common tokens that count, unless the prompts are equal.
const MIN_COMMON: usize = 12;
/// Maximum prompts that are remembered.
const MAX_PROMPTS: usize = 64;

/// A bounded list of past answers, the latest first.
#[derive(Default)]
pub(super) struct SimilarPrompts {
    past: VecDeque<PastAnswer>,
}

pub(super) struct PastAnswer {
    /// The first tokens of the prompt.
    prefix: OwnedPrefixKey,
    /// By drafter.
    pub records: Vec<DrafterRecord>,
    /// Tokens of answers to prompts with this prefix: a moving average, and of the last answer.
    pub lengths: [f64; 2],
}

impl SimilarPrompts {
    /// The past answer whose prompt has the longest common prefix with `prompt`; the latest one of
    /// several.
    pub(super) fn find(&self, prompt: PrefixKey) -> Option<&PastAnswer> {
        let prefix = head(prompt);
        let common = |past: &PastAnswer| past.prefix.as_key().common(&prefix);
        let found = self.past.iter().rev().max_by_key(|past| common(past))?;
        (common(found) >= MIN_COMMON || found.prefix.as_key() == prefix).then_some(found)
    }

    /// Adds an answer of `tokens` tokens, with the records of drafters at its end; `average`
    /// updates the average length.
    pub(super) fn add(
        &mut self,
        prompt: PrefixKey,
        records: Vec<DrafterRecord>,
        tokens: f64,
        average: impl Fn(Option<f64>, f64) -> f64,
    ) {
        let prefix = head(prompt);
        let known = self.past.iter().position(|past| past.prefix.as_key() == prefix);
        let known = known.and_then(|at| self.past.remove(at));
        let lengths = [average(known.map(|past| past.lengths[0]), tokens), tokens];
        self.past.truncate(MAX_PROMPTS - 1);
        self.past.push_front(PastAnswer { prefix: prefix.into(), records, lengths });
    }
}

fn head(prompt: PrefixKey) -> PrefixKey {
    prompt.first(prompt.tokens.len().min(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CacheSalt;

    #[test]
    fn lookup_prefers_the_longest_common_prefix_then_the_latest() {
        let mut similar = SimilarPrompts::default();
        let prompt =
            |common: u32, rest: u32| (0..common).chain(1000 * rest..1000 * rest + 9).collect::<Vec<u32>>();
        let add = |similar: &mut SimilarPrompts, prompt: &[u32], tokens| {
            let prompt = PrefixKey { salt: None, tokens: prompt };
            similar.add(prompt, vec![], tokens, |known, new| known.map_or(new, |known| (known + new) / 2.0));
        };
        let under = |salt, similar: &SimilarPrompts, tokens: &[u32]| {
            similar.find(PrefixKey { salt, tokens }).map(|past| past.lengths)
        };
        let lengths = |similar: &SimilarPrompts, prompt: &[u32]| under(None, similar, prompt);
        assert_eq!(lengths(&similar, &prompt(20, 1)), None);
        add(&mut similar, &prompt(20, 1), 10.0);
        add(&mut similar, &prompt(30, 2), 20.0);
        add(&mut similar, &prompt(20, 3), 30.0);
        assert_eq!(lengths(&similar, &prompt(40, 4)), Some([20.0, 20.0]), "30 common tokens");
        assert_eq!(lengths(&similar, &prompt(20, 4)), Some([30.0, 30.0]), "the latest");
        let salt = Some(CacheSalt::new([Some("other")]));
        assert_eq!(under(salt, &similar, &prompt(20, 1)), None, "another salt");
        assert_eq!(lengths(&similar, &prompt(MIN_COMMON as u32 - 1, 4)), None, "too short");
        add(&mut similar, &prompt(2, 5), 5.0);
        assert_eq!(lengths(&similar, &prompt(2, 5)), Some([5.0, 5.0]), "short and equal");
        add(&mut similar, &prompt(20, 1), 20.0);
        assert_eq!(lengths(&similar, &prompt(20, 1)), Some([15.0, 20.0]));
        (0..MAX_PROMPTS as u32).for_each(|i| add(&mut similar, &[i; 3], 1.0));
        assert_eq!(similar.past.len(), MAX_PROMPTS);
        assert_eq!(lengths(&similar, &prompt(40, 4)), None, "dropped");
    }
}
