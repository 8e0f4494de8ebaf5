//! Which sequences the next step computes, and how many tokens of each.

use crate::api::Priority;

/// Tokens that a running sequence can compute in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// This many known tokens, of a prompt or a replay.
    Prefill(usize),
    /// The token sampled last and this many drafted ones.
    Decode(usize),
    /// No token is ready.
    Nothing,
}

/// A sequence, by its index, and its tokens in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scheduled {
    pub sequence: usize,
    pub num_tokens: usize,
}

/// Schedules the next step from each sequence's demand; the result is ascending.
///
/// Every decoding sequence gets its token and its draft. Prefills share `chunk` tokens by their
/// priorities' weights, so that a long prompt does not block a short one; each gets at least one
/// token while `chunk` lasts.
pub(super) fn schedule(demands: &[(Demand, Priority)], chunk: usize) -> Vec<Scheduled> {
    let prefills = demands.iter().enumerate().filter_map(|(i, (demand, priority))| match demand {
        Demand::Prefill(tokens) => Some((i, *tokens, *priority)),
        _ => None,
    });
    let mut prefills: Vec<(usize, usize, Priority)> = prefills.collect();
    // The smallest demand for its weight first: the rest of its share goes to the others.
    prefills.sort_by_key(|&(_, tokens, priority)| tokens * priority.stride());
    prefills.truncate(chunk);
    let mut left = chunk - prefills.len();
    let mut weights: usize = prefills.iter().map(|(_, _, priority)| priority.weight()).sum();
    let mut scheduled: Vec<Scheduled> = vec![];
    for (sequence, tokens, priority) in prefills {
        let more = (tokens - 1).min((left * priority.weight()).div_ceil(weights));
        (left, weights) = (left - more, weights - priority.weight());
        scheduled.push(Scheduled { sequence, num_tokens: 1 + more });
    }
    scheduled.extend(demands.iter().enumerate().filter_map(|(sequence, (demand, _))| match demand {
        Demand::Decode(drafted) => Some(Scheduled { sequence, num_tokens: 1 + drafted }),
        _ => None,
    }));
    scheduled.sort();
    scheduled
}

/// Schedules whole prompts, the first ones by priority that `chunk` holds together, and always one.
pub(super) fn schedule_whole(demands: &[(Demand, Priority)], chunk: usize) -> Vec<Scheduled> {
    let prefills = demands.iter().enumerate().filter_map(|(sequence, (demand, priority))| match demand {
        Demand::Prefill(num_tokens) => Some((*priority, Scheduled { sequence, num_tokens: *num_tokens })),
        _ => None,
    });
    let mut prefills: Vec<(Priority, Scheduled)> = prefills.collect();
    // Stable: in the order of admission.
    prefills.sort_by_key(|(priority, _)| *priority as usize);
    let mut left = chunk;
    let fits = |(at, (_, scheduled)): (usize, (Priority, Scheduled))| {
        let num_tokens = scheduled.num_tokens;
        let fits = at == 0 || num_tokens <= left;
        left = if fits { left.saturating_sub(num_tokens) } else { 0 };
        fits.then_some(scheduled)
    };
    let mut scheduled: Vec<Scheduled> = prefills.into_iter().enumerate().filter_map(fits).collect();
    scheduled.sort();
    scheduled
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Demand::*, *};
    use crate::api::Priority::*;

    fn pairs(demands: &[(Demand, Priority)], chunk: usize) -> Vec<(usize, usize)> {
        schedule(demands, chunk).into_iter().map(|s| (s.sequence, s.num_tokens)).collect()
    }

    fn check(demands: &[Demand], chunk: usize, expected: &[(usize, usize)]) {
        let demands: Vec<_> = demands.iter().map(|demand| (*demand, Normal)).collect();
        assert_eq!(pairs(&demands, chunk), expected, "{demands:?} in {chunk}");
    }

    #[test]
    fn schedule_gives_decodes_their_tokens_and_prefills_equal_shares() {
        check(&[], 256, &[]);
        check(&[Decode(0), Nothing, Decode(4)], 256, &[(0, 1), (2, 5)]);
        check(&[Prefill(1000)], 256, &[(0, 256)]);
        check(&[Prefill(1000), Decode(0), Prefill(10)], 256, &[(0, 246), (1, 1), (2, 10)]);
        check(&[Prefill(1000), Prefill(1000), Prefill(5)], 105, &[(0, 50), (1, 50), (2, 5)]);
        check(&[Prefill(9), Prefill(8), Prefill(7)], 2, &[(1, 1), (2, 1)]);
    }

    #[test]
    fn schedule_whole_splits_no_prompt() {
        let check = |demands: &[(Demand, Priority)], expected: &[(usize, usize)]| {
            let found = schedule_whole(demands, 100).into_iter().map(|s| (s.sequence, s.num_tokens));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{demands:?}");
        };
        check(&[], &[]);
        check(&[(Prefill(500), Normal), (Prefill(1), Normal)], &[(0, 500)]);
        check(&[(Prefill(60), Normal), (Nothing, Normal), (Prefill(40), Normal)], &[(0, 60), (2, 40)]);
        // None overtakes the first that does not fit.
        check(&[(Prefill(60), Normal), (Prefill(41), Normal), (Prefill(5), Normal)], &[(0, 60)]);
        check(&[(Prefill(60), Background), (Prefill(50), Interactive)], &[(1, 50)]);
    }

    #[test]
    fn prefills_share_by_priority() {
        let long = Prefill(5000);
        let shares = |demands: &[(Demand, Priority)]| {
            schedule(demands, 512).into_iter().map(|s| s.num_tokens).collect::<Vec<_>>()
        };
        assert_eq!(shares(&[(long, Background), (long, Normal), (long, Interactive)]), [25, 98, 389]);
        assert_eq!(shares(&[(long, Background), (Prefill(90), Interactive)]), [422, 90]);
        assert_eq!(shares(&[(long, Background), (Decode(0), Background), (long, Normal)]), [103, 1, 409]);
    }

    fn demand() -> impl Strategy<Value = (Demand, Priority)> {
        let demand =
            prop_oneof![(1usize..5000).prop_map(Prefill), (0usize..9).prop_map(Decode), Just(Nothing)];
        (demand, prop::sample::select(&Priority::ALL[..]))
    }

    proptest! {
        #[test]
        fn schedule_exceeds_no_demand_and_spends_the_chunk(
            demands in prop::collection::vec(demand(), 0..12),
            chunk in 1usize..600,
        ) {
            let scheduled = pairs(&demands, chunk);
            let mut spent = 0;
            for &(i, tokens) in &scheduled {
                match demands[i].0 {
                    Prefill(wanted) => {
                        prop_assert!(tokens >= 1 && tokens <= wanted);
                        spent += tokens;
                    }
                    Decode(drafted) => prop_assert_eq!(tokens, 1 + drafted),
                    Nothing => prop_assert!(false, "{} demands nothing", i),
                }
            }
            let prefills = demands.iter().filter_map(|(d, _)| if let Prefill(n) = d { Some(*n) } else { None });
            prop_assert_eq!(spent, prefills.clone().sum::<usize>().min(chunk));
            let count = |is: fn(&Demand) -> bool| scheduled.iter().filter(|(i, _)| is(&demands[*i].0)).count();
            prop_assert_eq!(count(|d| matches!(d, Prefill(_))), prefills.count().min(chunk), "each has a token");
            let decodes = demands.iter().filter(|(d, _)| matches!(d, Decode(_))).count();
            prop_assert_eq!(count(|d| matches!(d, Decode(_))), decodes);
        }

        #[test]
        fn prefill_within_its_fair_share_takes_one_step(
            others in prop::collection::vec((1usize..5000, prop::sample::select(&Priority::ALL[..])), 0..7),
            chunk in 8usize..600,
            priority in prop::sample::select(&Priority::ALL[..]),
        ) {
            let spare = chunk - others.len() - 1;
            let weights: usize = others.iter().map(|(_, p)| p.weight()).sum();
            let fair = 1 + spare * priority.weight() / (weights + priority.weight());
            let mut demands: Vec<_> = others.into_iter().map(|(n, p)| (Prefill(n), p)).collect();
            demands.push((Prefill(fair), priority));
            prop_assert!(pairs(&demands, chunk).contains(&(demands.len() - 1, fair)));
        }
    }
}
