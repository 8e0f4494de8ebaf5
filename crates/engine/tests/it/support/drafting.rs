//! Random requests to an engine with a drafter, compared with one without.

use lanner_engine::*;

use super::requests::{Random, answer, any_request, submit};

/// Submits a number of requests together in each of `rounds`, each with one of the `modes`, and
/// cancels one of `cancel_one_of`. Answers equal those of `plain` to the bit; those of cancelled
/// requests are prefixes. Returns the number of drafted tokens.
pub(crate) fn check(
    what: &str,
    [plain, engine]: [&Engine; 2],
    seed: u64,
    rounds: impl Iterator<Item = usize>,
    modes: &[Option<Speculate>],
    cancel_one_of: usize,
) -> usize {
    let (mut random, mut before, mut drafted) = (Random(seed), vec![], 0);
    for batch in rounds {
        let requests: Vec<Request> = (0..batch)
            .map(|_| {
                let speculation = modes[random.below(modes.len())].clone();
                Request { speculation, ..any_request(&mut random, &before) }
            })
            .collect();
        let running: Vec<_> = requests.iter().map(|request| submit(engine, request.clone())).collect();
        for (request, mut running) in requests.into_iter().zip(running) {
            if random.one_in(cancel_one_of) {
                running.early.extend(running.events.recv());
                running.handle.cancel();
            }
            let got = answer(running);
            let expected = answer(submit(plain, Request { speculation: None, ..request.clone() }));
            match got.reason {
                FinishReason::Cancelled => assert!(expected.tokens.starts_with(&got.tokens), "{what}"),
                _ => assert_eq!(got.tokens, expected.tokens, "{what}: {request:?}"),
            }
            drafted += got.usage.speculation.iter().map(|by| by.drafted).sum::<usize>();
            before.push([&request.prompt[..], &got.ids()].concat());
        }
    }
    drafted
}
