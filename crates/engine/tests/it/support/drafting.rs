//! Random requests to a model that another drafts for.

use engine::*;

use super::requests::{Random, answer, any_request, submit};

/// Submits so many requests together in each of `rounds`, each drafted for in one of `ways`, and cancels one in `leave`. Answers
/// are those of `plain` to the bit, or begin as those do. How many tokens were drafted.
pub fn check(
    what: &str,
    [plain, engine]: [&Engine; 2],
    seed: u64,
    rounds: impl Iterator<Item = usize>,
    ways: &[Option<Speculate>],
    leave: usize,
) -> usize {
    let (mut random, mut before, mut drafted) = (Random(seed), vec![], 0);
    for together in rounds {
        let asked: Vec<Request> = (0..together)
            .map(|_| {
                let speculation = ways[random.below(ways.len())].clone();
                Request { speculation, ..any_request(&mut random, &before) }
            })
            .collect();
        let running: Vec<_> = asked.iter().map(|asked| submit(engine, asked.clone())).collect();
        for (asked, mut running) in asked.into_iter().zip(running) {
            if random.one_in(leave) {
                running.early.extend(running.events.recv());
                running.ticket.cancel();
            }
            let got = answer(running);
            let expected = answer(submit(plain, Request { speculation: None, ..asked.clone() }));
            match got.reason {
                FinishReason::Cancelled => assert!(expected.tokens.starts_with(&got.tokens), "{what}"),
                _ => assert_eq!(got.tokens, expected.tokens, "{what}: {asked:?}"),
            }
            drafted += got.usage.speculation.iter().map(|by| by.drafted).sum::<usize>();
            before.push([&asked.prompt[..], &got.ids()].concat());
        }
    }
    drafted
}
