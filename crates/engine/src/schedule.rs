//! Who is stepped next, and with how many tokens: pure bookkeeping, no arrays.

use crate::request::Priority;

/// What one running sequence could do in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Compute this many known tokens (a prompt, or one being replayed).
    Prefill(usize),
    /// Compute the token just sampled, and so many drafted ones behind it.
    Decode(usize),
    /// Nothing: its last token is on the way.
    Nothing,
}

/// Chooses `(sequence, tokens)` for the next step from what each running sequence wants.
///
/// Everyone who decodes gets a token, and room for a draft. Those who prefill share `chunk` tokens by their priorities' weights: equals share
/// equally, so that a short prompt is not held up by a long one in front of it, and each has at least one token if
/// there are enough.
pub fn plan(wants: &[(Want, Priority)], chunk: usize) -> Vec<(usize, usize)> {
    let prefills = wants.iter().enumerate().filter_map(|(i, (want, priority))| match want {
        Want::Prefill(tokens) => Some((i, *tokens, *priority)),
        _ => None,
    });
    let mut prefills: Vec<(usize, usize, Priority)> = prefills.collect();
    // Those first who want least for their weight: what they leave of their share goes to the others.
    prefills.sort_by_key(|&(_, tokens, priority)| tokens * priority.stride());
    prefills.truncate(chunk);
    let mut left = chunk - prefills.len();
    let mut weights: usize = prefills.iter().map(|(_, _, priority)| priority.weight()).sum();
    let mut chosen: Vec<(usize, usize)> = vec![];
    for (i, tokens, priority) in prefills {
        let more = (tokens - 1).min((left * priority.weight()).div_ceil(weights));
        (left, weights) = (left - more, weights - priority.weight());
        chosen.push((i, 1 + more));
    }
    chosen.extend(wants.iter().enumerate().filter_map(|(i, (want, _))| match want {
        Want::Decode(drafted) => Some((i, 1 + drafted)),
        _ => None,
    }));
    chosen.sort();
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::request::Priority::*, Want::*, *};

    fn check(wants: &[Want], chunk: usize, expected: &[(usize, usize)]) {
        let wants: Vec<_> = wants.iter().map(|want| (*want, Normal)).collect();
        assert_eq!(plan(&wants, chunk), expected, "{wants:?} in {chunk}");
    }

    #[test]
    fn decoders_always_go_and_prefills_share() {
        check(&[], 256, &[]);
        check(&[Decode(0), Nothing, Decode(4)], 256, &[(0, 1), (2, 5)]);
        check(&[Prefill(1000)], 256, &[(0, 256)]);
        check(&[Prefill(1000), Decode(0), Prefill(10)], 256, &[(0, 246), (1, 1), (2, 10)]);
        check(&[Prefill(1000), Prefill(1000), Prefill(5)], 105, &[(0, 50), (1, 50), (2, 5)]);
        check(&[Prefill(9), Prefill(8), Prefill(7)], 2, &[(1, 1), (2, 1)]);
    }

    #[test]
    fn prefills_share_by_priority() {
        let long = Prefill(5000);
        let shares =
            |wants: &[(Want, Priority)]| plan(wants, 512).into_iter().map(|(_, n)| n).collect::<Vec<_>>();
        assert_eq!(shares(&[(long, Background), (long, Normal), (long, Interactive)]), [25, 98, 389]);
        assert_eq!(shares(&[(long, Background), (Prefill(90), Interactive)]), [422, 90]);
        assert_eq!(shares(&[(long, Background), (Decode(0), Background), (long, Normal)]), [103, 1, 409]);
    }

    fn want() -> impl Strategy<Value = (Want, Priority)> {
        let want = prop_oneof![(1usize..5000).prop_map(Prefill), (0usize..9).prop_map(Decode), Just(Nothing)];
        (want, prop::sample::select(&Priority::ALL[..]))
    }

    proptest! {
        #[test]
        fn nobody_is_overdrawn_and_the_budget_is_spent(wants in prop::collection::vec(want(), 0..12), chunk in 1usize..600) {
            let chosen = plan(&wants, chunk);
            let mut spent = 0;
            for &(i, tokens) in &chosen {
                match wants[i].0 {
                    Prefill(wanted) => {
                        prop_assert!(tokens >= 1 && tokens <= wanted);
                        spent += tokens;
                    }
                    Decode(drafted) => prop_assert_eq!(tokens, 1 + drafted),
                    Nothing => prop_assert!(false, "{} wants nothing", i),
                }
            }
            let prefills = wants.iter().filter_map(|(w, _)| if let Prefill(n) = w { Some(*n) } else { None });
            prop_assert_eq!(spent, prefills.clone().sum::<usize>().min(chunk));
            let planned = |want: fn(&Want) -> bool| chosen.iter().filter(|(i, _)| want(&wants[*i].0)).count();
            prop_assert_eq!(planned(|w| matches!(w, Prefill(_))), prefills.count().min(chunk), "each has a token");
            prop_assert_eq!(planned(|w| matches!(w, Decode(_))), wants.iter().filter(|(w, _)| matches!(w, Decode(_))).count());
        }

        #[test]
        fn a_prompt_no_longer_than_its_fair_share_is_done_at_once(
            others in prop::collection::vec((1usize..5000, prop::sample::select(&Priority::ALL[..])), 0..7),
            chunk in 8usize..600,
            priority in prop::sample::select(&Priority::ALL[..]),
        ) {
            let spare = chunk - others.len() - 1;
            let weights: usize = others.iter().map(|(_, p)| p.weight()).sum();
            let fair = 1 + spare * priority.weight() / (weights + priority.weight());
            let mut wants: Vec<_> = others.into_iter().map(|(n, p)| (Prefill(n), p)).collect();
            wants.push((Prefill(fair), priority));
            prop_assert!(plan(&wants, chunk).contains(&(wants.len() - 1, fair)));
        }
    }
}
