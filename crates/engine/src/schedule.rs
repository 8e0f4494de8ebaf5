//! Who is stepped next and with how many tokens: pure bookkeeping, no arrays.

/// What one running sequence could do in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Compute this many known tokens (a prompt, or one being replayed).
    Prefill(usize),
    /// Compute the token just sampled.
    Decode,
    /// Nothing: its last token is on the way.
    Nothing,
}

/// Chooses `(sequence, tokens)` for the next step from what each running sequence wants.
///
/// Everyone who decodes gets a token. Those who prefill share `chunk` tokens equally, so that a short prompt is
/// not held up by a long one in front of it.
pub fn plan(wants: &[Want], chunk: usize) -> Vec<(usize, usize)> {
    let mut waiting: Vec<(usize, usize)> = wants
        .iter()
        .enumerate()
        .filter_map(|(i, want)| match want {
            Want::Prefill(tokens) => Some((i, *tokens)),
            _ => None,
        })
        .collect();
    // Smallest first: what it leaves of its share goes to the others.
    waiting.sort_by_key(|&(_, tokens)| tokens);
    let (mut left, mut sharers) = (chunk, waiting.len());
    let mut chosen: Vec<(usize, usize)> = vec![];
    for (i, tokens) in waiting {
        let share = tokens.min(left.div_ceil(sharers));
        (left, sharers) = (left - share, sharers - 1);
        if share > 0 {
            chosen.push((i, share));
        }
    }
    chosen.extend(wants.iter().enumerate().filter(|(_, want)| **want == Want::Decode).map(|(i, _)| (i, 1)));
    chosen.sort();
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Want::*, *};

    fn check(wants: &[Want], chunk: usize, expected: &[(usize, usize)]) {
        assert_eq!(plan(wants, chunk), expected, "{wants:?} in {chunk}");
    }

    #[test]
    fn decoders_always_go_and_prefills_share() {
        check(&[], 256, &[]);
        check(&[Decode, Nothing, Decode], 256, &[(0, 1), (2, 1)]);
        check(&[Prefill(1000)], 256, &[(0, 256)]);
        check(&[Prefill(1000), Decode, Prefill(10)], 256, &[(0, 246), (1, 1), (2, 10)]);
        check(&[Prefill(1000), Prefill(1000), Prefill(5)], 105, &[(0, 50), (1, 50), (2, 5)]);
    }

    fn want() -> impl Strategy<Value = Want> {
        prop_oneof![(1usize..5000).prop_map(Prefill), Just(Decode), Just(Nothing)]
    }

    proptest! {
        #[test]
        fn nobody_is_overdrawn_and_the_budget_is_spent(wants in prop::collection::vec(want(), 0..12), chunk in 1usize..600) {
            let chosen = plan(&wants, chunk);
            let mut spent = 0;
            for &(i, tokens) in &chosen {
                match wants[i] {
                    Prefill(wanted) => {
                        prop_assert!(tokens >= 1 && tokens <= wanted);
                        spent += tokens;
                    }
                    Decode => prop_assert_eq!(tokens, 1),
                    Nothing => prop_assert!(false, "{} wants nothing", i),
                }
            }
            let asked: usize = wants.iter().map(|w| if let Prefill(n) = w { *n } else { 0 }).sum();
            prop_assert_eq!(spent, asked.min(chunk));
            let decoders = wants.iter().filter(|w| **w == Decode).count();
            prop_assert_eq!(chosen.iter().filter(|(i, _)| wants[*i] == Decode).count(), decoders);
        }

        #[test]
        fn a_prompt_no_longer_than_its_fair_share_is_done_at_once(
            others in prop::collection::vec(1usize..5000, 0..7), chunk in 8usize..600,
        ) {
            let fair = chunk / (others.len() + 1);
            let mut wants: Vec<Want> = others.into_iter().map(Prefill).collect();
            wants.push(Prefill(fair));
            prop_assert!(plan(&wants, chunk).contains(&(wants.len() - 1, fair)));
        }
    }
}
