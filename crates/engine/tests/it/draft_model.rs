//! Draft models: with any of them, answers equal those of plain decoding to the bit.

use lanner_engine::*;

use crate::{
    speculate::MODELS,
    support::{
        checkpoint, drafting,
        requests::{Random, answer, request, submit},
    },
};

fn load(golden: &str, draft: Option<&str>, limit: Option<usize>) -> Engine {
    let (folder, draft) = (checkpoint::folder(golden), draft.map(checkpoint::folder));
    let options = Options {
        device: Some(Device::Cpu),
        prefill_chunk: 64,
        draft_model: draft.as_ref().map(|folder| Checkpoint::Folder(folder.path().into())),
        memory_limit: limit,
        ..Options::default()
    };
    start(Checkpoint::Folder(folder.path().into()), options, |_| {}).expect("loads")
}

fn fixed(depth: usize) -> Option<Speculate> {
    Some(Speculate::Fixed { drafter: "draft_model".into(), depth: Some(depth) })
}

fn sampling(i: usize) -> Sampling {
    let sampled = Sampling { temperature: 1.0, seed: i as u64, ..Sampling::default() };
    match i % 4 {
        0 | 1 => Sampling::default(),
        2 => sampled,
        _ => Sampling { top_p: 0.95, frequency_penalty: 0.2, logit_bias: [(9, 1.5)].into(), ..sampled },
    }
}

/// At every temperature, and alone as in a batch of eight.
#[test]
fn drafts_of_an_identical_model_are_all_accepted() {
    for golden in MODELS {
        let plain = load(golden, None, None);
        let engine = load(golden, Some(golden), None);
        assert!(engine.info().drafters.contains(&"draft_model"));
        let mut random = Random(golden.len() as u64);
        let asked: Vec<Request> = (0..8)
            .map(|i| {
                let prompt = random.tokens(3 + 11 * i);
                Request {
                    sampling: sampling(i),
                    speculation: fixed([1, 3, 4, 12][i / 2]),
                    ..request(prompt, 25)
                }
            })
            .collect();
        let expected: Vec<_> = asked
            .iter()
            .map(|r| answer(submit(&plain, Request { speculation: None, ..r.clone() })))
            .collect();
        let alone: Vec<_> = asked.iter().map(|asked| answer(submit(&engine, asked.clone()))).collect();
        let together: Vec<_> = asked.iter().map(|asked| submit(&engine, asked.clone())).collect();
        let together: Vec<_> = together.into_iter().map(answer).collect();
        for got in [alone, together] {
            for (got, expected) in got.iter().zip(&expected) {
                assert_eq!(got.tokens, expected.tokens, "{golden}");
                let [Drafted { drafter: "draft_model", drafted, accepted }] = got.usage.speculation[..]
                else {
                    panic!("{golden}: {:?}", got.usage.speculation)
                };
                assert!(accepted == drafted && drafted >= 12, "{golden}: {accepted} of {drafted}");
            }
        }
    }
}

/// Unrelated models, with cancelled requests and common prefixes in between.
#[test]
fn answers_with_any_draft_model_equal_plain_decoding() {
    for (i, draft) in MODELS.into_iter().enumerate() {
        let golden = MODELS[(i + 3) % MODELS.len()];
        let (plain, engine) = (load(golden, None, None), load(golden, Some(draft), None));
        let (rounds, modes) =
            ((0..16).map(|round| [1, 8][round % 2]), [fixed(3), fixed(7), fixed(5), Some(Speculate::Auto)]);
        let what = format!("{draft} for {golden}");
        let drafted = drafting::check(&what, [&plain, &engine], i as u64, rounds, &modes, 4);
        assert!(drafted > 40, "{what}: {drafted}");
    }
}

#[test]
fn memory_plan_counts_the_draft_model() {
    let limit = Some(2_000_000_000);
    let (one, two) = (load("qwen3-a", None, limit), load("qwen3-a", Some("qwen3_5-text-sharded"), limit));
    let other = load("qwen3_5-text-sharded", None, limit);
    let (one, two, other) = (&one.info().memory, &two.info().memory, &other.info().memory);
    assert_eq!(two.weights, one.weights + other.weights);
    assert!(two.state(100) > one.state(100) + other.state(100), "and states that a wrong draft goes back to");
    assert!(two.step >= two.draft_cache && two.draft_cache > 0);
}

#[test]
fn draft_model_that_is_missing_is_rejected() {
    let engine = load("qwen3-a", None, None);
    let asked = Request { speculation: fixed(3), ..request(vec![5], 2) };
    let error = engine.submit(asked, |_| {}).err().expect("refused").to_string();
    assert!(error.contains("there is no drafter `draft_model` for this model"), "{error}");
    let broken =
        Options { draft_model: Some(Checkpoint::Folder("/no/such/folder".into())), ..Options::default() };
    let folder = checkpoint::folder("qwen3-a");
    let error =
        start(Checkpoint::Folder(folder.path().into()), broken, |_| {}).err().expect("refused").to_string();
    assert!(error.contains("the draft model: ") && error.contains("/no/such/folder"), "{error}");
}
