//! Samples on an NVIDIA GPU, where the logits are, for draws from few or all tokens whose mask is a
//! short list; gives the CPU's tokens.

use mlx::Array;
use nn::{AllowedTokens, TokenDraw, TokenList};

use super::{Draw, SampleOutput};
use crate::api::TokenSet;

/// `None` if the logits are elsewhere or a draw is not one of those.
pub(super) fn sample(logits: &Array, draws: &[(Draw, Vec<Array>)]) -> Option<SampleOutput> {
    let vocab_size = logits.dim(1) as usize;
    let draws: Option<Vec<TokenDraw>> = draws.iter().map(|(draw, _)| draw.on_device(vocab_size)).collect();
    let [tokens, faults] = nn::sample_tokens(logits, &draws?)?;
    Some(SampleOutput { tokens, faults })
}

impl Draw {
    /// `None` unless it draws by the tokens' own logits, from all of them or nearly all or a few,
    /// and of these from all or the likeliest few.
    fn on_device(&self, vocab_size: usize) -> Option<TokenDraw> {
        let sampling = &self.sampling;
        let own = self.bias.is_empty() && self.history.is_none();
        let top_k = if sampling.top_k >= vocab_size { 0 } else { sampling.top_k };
        // The probability of the likeliest is known only if they are few.
        let few = top_k <= TokenDraw::MOST_KEPT && (top_k > 0 || sampling.top_p >= 1.0);
        if !own || !(few || sampling.temperature == 0.0) {
            return None;
        }
        let words = self.allowed.as_ref().and_then(TokenSet::words);
        Some(TokenDraw {
            temperature: sampling.temperature,
            seed: sampling.seed,
            position: self.position,
            top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            allowed: words.map_or(Some(AllowedTokens::All), |words| listed(words, vocab_size))?,
        })
    }
}

/// The tokens whose bits are set in a mask; `None` if there is none, or no short list says it.
fn listed(words: &[u32], vocab_size: usize) -> Option<AllowedTokens> {
    let word = |at: usize| {
        let used = (vocab_size - 32 * at).min(32);
        words.get(at).copied().unwrap_or(0) & u32::MAX >> (32 - used)
    };
    let (whole, all) = (words.len().min(vocab_size / 32), vocab_size.div_ceil(32));
    let of_whole: u32 = words[..whole].iter().map(|word| word.count_ones()).sum();
    let count = (of_whole + (whole..all).map(|at| word(at).count_ones()).sum::<u32>()) as usize;
    let ids = |set: bool, most: usize| -> Option<TokenList> {
        let has = |id: &usize| (word(id / 32) >> (id % 32) & 1 == 1) == set;
        let of_word = |at: usize| (32 * at..(32 * at + 32).min(vocab_size)).filter(has);
        let full = if set { 0 } else { u32::MAX };
        let ids = (0..all).filter(|&at| word(at) != full).flat_map(of_word);
        TokenList::new(&ids.take(most).map(|id| id as u32).collect::<Vec<_>>())
    };
    match (count, vocab_size - count) {
        (0, _) => None,
        (_, 0) => Some(AllowedTokens::All),
        (few, _) if few <= TokenList::MOST => ids(true, few).map(AllowedTokens::Only),
        (_, few) if few <= TokenList::MOST => ids(false, few).map(AllowedTokens::AllBut),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_becomes_a_short_list_if_one_says_it() {
        let check = |set: TokenSet, expected: Option<AllowedTokens>| {
            assert_eq!(listed(set.words().expect("words"), 70), expected, "{set:?}");
        };
        let list = |ids: &[u32]| TokenList::new(ids).expect("short");
        let but = |missing: &[u32]| TokenSet::of(70, (0..70).filter(|id| !missing.contains(id)));
        check(TokenSet::of(70, []), None);
        check(TokenSet::of(70, 0..70), Some(AllowedTokens::All));
        check(TokenSet::of(96, 0..96), Some(AllowedTokens::All));
        check(TokenSet::of(70, [69, 3]), Some(AllowedTokens::Only(list(&[3, 69]))));
        check(but(&[0, 31, 32, 69]), Some(AllowedTokens::AllBut(list(&[0, 31, 32, 69]))));
        check(TokenSet::of(70, 0..8), Some(AllowedTokens::Only(list(&[0, 1, 2, 3, 4, 5, 6, 7]))));
        check(TokenSet::of(70, 0..9), None);
        // Tokens past the last word are missing.
        check(TokenSet::of(64, 0..64), Some(AllowedTokens::AllBut(list(&[64, 65, 66, 67, 68, 69]))));
    }
}
