//! Speculative decoding: with any drafter, answers equal those of plain decoding to the bit.
//!
//! LANNER_SCHEDULES sets the number of rounds; one round is about two thousand generations.

use std::sync::Arc;

use lanner_engine::*;

use crate::support::{
    checkpoint,
    requests::{Answer, Random, Running, answer, any_request, request, submit},
};

/// One model for each kind of cache: keys and values, windows, windows shared by layers,
/// recurrences with a decay per head and per channel, convolutions, latents.
pub(crate) const MODELS: [&str; 7] = [
    "qwen3-a",
    "gemma3_text-a",
    "gemma4_e-a",
    "qwen3_5-text-sharded",
    "kimi_linear-a",
    "lfm2-a",
    "deepseek_v3-a",
];

fn options(speculate: Speculate) -> Options {
    Options { device: Some(Device::Cpu), prefix_cache_bytes: 0, speculate, ..Options::default() }
}

fn load(golden: &str, speculate: Speculate) -> Engine {
    let folder = checkpoint::folder(golden);
    start(Checkpoint::Folder(folder.path().into()), options(speculate), |_| {}).expect("loads")
}

fn scripted(golden: &str, script: Script) -> Engine {
    let folder = checkpoint::folder(golden);
    let options = options(Speculate::Auto);
    start_scripted(Checkpoint::Folder(folder.path().into()), options, script, |_| {}).expect("loads")
}

fn fixed(drafter: &str, depth: usize) -> Speculate {
    Speculate::Fixed { drafter: drafter.into(), depth: Some(depth) }
}

/// Greedy, sampled or penalised; some end at an end-of-sequence token, some prompts repeat
/// themselves.
fn short_request(random: &mut Random) -> Request {
    let length = random.choose(&[1, 4, 30, 90]);
    let part = random.tokens(length);
    let prompt = if random.one_in(2) { [&part[..], &part].concat() } else { part };
    let seed = random.next();
    let sampled = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    let sampling = match random.below(6) {
        0..=2 => Sampling::default(),
        3 => Sampling { top_p: 0.9, top_k: 40, logit_bias: [(7, 2.0)].into(), ..sampled },
        4 => Sampling { presence_penalty: 0.4, frequency_penalty: 0.1, repetition_penalty: 1.1, ..sampled },
        _ => Sampling { temperature: 0.3, ..sampled },
    };
    let max_tokens = random.below(24) + 1;
    let (ignore_eos, logits) = (!random.one_in(3), random.one_in(10));
    Request { sampling, ignore_eos, logits, ..request(prompt, max_tokens) }
}

/// The answer without its costs.
fn content(Answer { tokens, reason, usage }: &Answer) -> (&[(u32, Vec<u32>)], FinishReason, usize) {
    (tokens, *reason, usage.completion_tokens)
}

/// Runs all requests at once, or one after the other.
fn ask(engine: &Engine, requests: &[Request], speculation: &Speculate, together: bool) -> Vec<Answer> {
    let submit = |request: &Request| {
        submit(engine, Request { speculation: Some(speculation.clone()), ..request.clone() })
    };
    match together {
        true => requests.iter().map(submit).collect::<Vec<Running>>().into_iter().map(answer).collect(),
        false => requests.iter().map(|request| answer(submit(request))).collect(),
    }
}

/// Random requests to one model, and the answers of plain decoding.
struct Comparison {
    golden: &'static str,
    round: u64,
    requests: Vec<Request>,
    expected: Vec<Answer>,
}

impl Comparison {
    fn new(golden: &'static str, round: u64) -> Comparison {
        let mut random = Random(1000 * round + golden.len() as u64);
        let requests: Vec<Request> = (0..16).map(|_| short_request(&mut random)).collect();
        let plain = load(golden, Speculate::Off);
        let expected = ask(&plain, &requests, &Speculate::Off, false);
        Comparison { golden, round, requests, expected }
    }

    /// An engine with a scripted drafter that knows the answers.
    fn engine(&self, acceptance_rate: f64) -> Engine {
        let answers = self.requests.iter().zip(&self.expected);
        let answers = answers.map(|(request, answer)| (request.prompt.clone(), answer.ids())).collect();
        scripted(self.golden, Script { answers, acceptance_rate, vocab_size: 250, seed: self.round })
    }

    /// Compares answers of requests alone and together; between `least` and `most` percent of
    /// drafted tokens are accepted. Returns the number of generations.
    fn check(&self, engine: &Engine, speculation: Speculate, least: usize, most: usize) -> usize {
        let Comparison { golden, round, requests, expected } = self;
        for (together, requests, expected) in
            [(false, &requests[..8], &expected[..8]), (true, &requests[..], &expected[..])]
        {
            let got = ask(engine, requests, &speculation, together);
            let (mut drafted, mut accepted) = (0, 0);
            for ((got, expected), request) in got.iter().zip(expected).zip(requests) {
                assert_eq!(
                    content(got),
                    content(expected),
                    "{golden}, {speculation}, round {round}: {request:?}"
                );
                drafted += got.usage.speculation.iter().map(|by| by.drafted).sum::<usize>();
                accepted += got.usage.speculation.iter().map(|by| by.accepted).sum::<usize>();
            }
            let percent = 100 * accepted / drafted.max(1);
            assert!((least..=most).contains(&percent), "{golden}, {speculation}: {accepted} of {drafted}");
        }
        8 + requests.len()
    }
}

#[test]
fn answers_with_any_drafter_equal_plain_decoding() {
    let rounds = std::env::var("LANNER_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(1u64);
    let mut generations = 0;
    for (round, golden) in (0..rounds).flat_map(|round| MODELS.map(|golden| (round, golden))) {
        let comparison = Comparison::new(golden, round);
        let mut check = |engine, speculation, least, most| {
            generations += comparison.check(engine, speculation, least, most)
        };
        let wrong = comparison.engine(0.0);
        check(&wrong, fixed("scripted", 4), 0, 10);
        check(&wrong, fixed("ngram", 5), 0, 100);
        check(&wrong, Speculate::Auto, 0, 100);
        let skips_layers = wrong.info().drafters.contains(&"self");
        assert!(skips_layers || golden != "qwen3_5-text-sharded");
        if skips_layers {
            check(&wrong, fixed("self", 3), 0, 100);
        }
        let half = comparison.engine(0.6);
        for depth in [1, 2, 3, 8] {
            check(&half, fixed("scripted", depth), 1, 99);
        }
        check(&half, Speculate::Auto, 0, 100);
        let identical = comparison.engine(1.0);
        // After an answer that ended early the script has no tokens.
        for depth in [1, 3, 7] {
            check(&identical, fixed("scripted", depth), 60, 100);
        }
        check(&identical, Speculate::Auto, 0, 100);
    }
    println!("{generations} generations");
    assert!(generations >= 2000, "{generations} generations");
}

/// Later requests resume from state of requests that finished or were cancelled while drafting.
#[test]
fn state_stored_after_drafts_equals_that_of_plain_decoding() {
    for golden in MODELS {
        let plain = load(golden, Speculate::Off);
        let folder = checkpoint::folder(golden);
        let script = Script { answers: vec![], acceptance_rate: 0.0, vocab_size: 250, seed: 4 };
        let options =
            Options { prefix_cache_bytes: 1 << 30, snapshot_interval: 32, ..options(Speculate::Auto) };
        let engine =
            start_scripted(Checkpoint::Folder(folder.path().into()), options, script, |_| {}).expect("loads");
        let (mut random, mut before, mut reused) = (Random(6), vec![], 0);
        for i in 0..40 {
            let speculation = Some([fixed("scripted", 3), fixed("ngram", 4), Speculate::Auto][i % 3].clone());
            let asked = Request { speculation, ..any_request(&mut random, &before) };
            let expected = answer(submit(&plain, Request { speculation: None, ..asked.clone() }));
            let mut running = submit(&engine, asked.clone());
            if random.one_in(4) {
                running.early.extend(running.events.recv());
                running.handle.cancel();
            }
            let got = answer(running);
            match got.reason {
                FinishReason::Cancelled => {
                    assert!(expected.tokens.starts_with(&got.tokens), "{golden}: {asked:?}")
                }
                _ => assert_eq!(content(&got), content(&expected), "{golden}: {asked:?}"),
            }
            reused += got.usage.cached_tokens;
            before.push([&asked.prompt[..], &got.ids()].concat());
        }
        assert!(reused > 300, "{golden}: {reused} tokens reused");
    }
}

#[test]
fn right_draft_is_accepted_whole() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded"] {
        let asked = request(vec![5, 9, 2, 33], 31);
        let expected = answer(submit(&load(golden, Speculate::Off), asked.clone()));
        let script = Script {
            answers: vec![(asked.prompt.clone(), expected.ids())],
            acceptance_rate: 1.0,
            vocab_size: 250,
            seed: 1,
        };
        let engine = scripted(golden, script);
        let got = answer(submit(&engine, Request { speculation: Some(fixed("scripted", 4)), ..asked }));
        assert_eq!(got.tokens, expected.tokens);
        // The first token comes from the prompt; then six steps of five.
        assert_eq!(got.usage.speculation, [Drafted { drafter: "scripted", drafted: 24, accepted: 24 }]);
    }
}

/// Allows multiples of a number, then forces a few tokens, then allows any.
#[derive(Clone, Debug)]
struct Rules {
    multiples_of: u32,
    until: usize,
    forced: Vec<u32>,
}

impl Constraint for Rules {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Following { rules: self.clone(), tokens: vec![] })
    }
}

struct Following {
    rules: Rules,
    tokens: Vec<u32>,
}

impl ConstraintState for Following {
    fn push(&mut self, token: u32) -> Result<bool, String> {
        let allowed = self.allowed()?.allows(token);
        self.tokens.extend(allowed.then_some(token));
        Ok(allowed)
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        self.tokens.truncate(self.tokens.len() - tokens);
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        let Some(said) = self.tokens.len().checked_sub(self.rules.until) else {
            return Ok(TokenSet::of(250, (0..250).step_by(self.rules.multiples_of as usize)));
        };
        let forced = self.rules.forced.get(said);
        Ok(forced.map_or_else(TokenSet::all, |token| TokenSet::of(250, [*token])))
    }

    fn forced(&mut self, max: usize) -> Result<Vec<u32>, String> {
        let said = self.tokens.len().checked_sub(self.rules.until);
        let forced = said.and_then(|said| self.rules.forced.get(said..)).unwrap_or_default();
        Ok(forced[..forced.len().min(max)].to_vec())
    }
}

#[test]
fn constraints_hold_with_and_without_speculation() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded", "gemma3_text-a"] {
        let plain = load(golden, Speculate::Off);
        let mut random = Random(8);
        let with = |prompt: &[u32], sampling: &Sampling, forced: &[u32]| {
            let rules = Rules { multiples_of: 7, until: 6, forced: forced.to_vec() };
            let constraint = Some(Arc::new(rules) as Arc<dyn Constraint>);
            Request { sampling: sampling.clone(), constraint, ..request(prompt.to_vec(), 20) }
        };
        let penalised = Sampling { temperature: 0.9, presence_penalty: 0.5, seed: 3, ..Sampling::default() };
        for sampling in
            [Sampling::default(), Sampling { temperature: 1.0, seed: 9, ..Sampling::default() }, penalised]
        {
            for forced in [&[][..], &[11, 12, 11, 12, 13]] {
                let part = random.tokens(12);
                let asked = with(&[&part[..], &part].concat(), &sampling, forced);
                let expected = answer(submit(&plain, asked.clone()));
                let mut ids = expected.ids();
                assert!(ids[..6].iter().all(|id| id % 7 == 0), "{ids:?}");
                assert_eq!(ids[6..6 + forced.len()], *forced);
                // Where steps begin depends on what runs beside: no draft has all forced tokens.
                ids[6..6 + forced.len()].fill(0);
                let script = Script {
                    answers: vec![(asked.prompt.clone(), ids)],
                    acceptance_rate: 0.7,
                    vocab_size: 250,
                    seed: 2,
                };
                let engine = scripted(golden, script);
                for speculation in [fixed("scripted", 5), fixed("ngram", 4), Speculate::Auto] {
                    let asked = Request { speculation: Some(speculation), ..asked.clone() };
                    let beside = with(&random.tokens(9), &sampling, &[1, 2, 3]);
                    let beside = submit(&engine, beside);
                    let got = answer(submit(&engine, asked));
                    assert_eq!(content(&got), content(&expected), "{golden}");
                    let by_forced = got.usage.speculation.iter().find(|by| by.drafter == "forced");
                    assert_eq!(by_forced.is_some(), forced.len() > 1, "{:?}", got.usage.speculation);
                    assert!(by_forced.is_none_or(|by| by.drafted == by.accepted));
                    answer(beside);
                }
            }
        }
    }
}

/// Ends in some way after five tokens.
#[derive(Clone, Copy, Debug)]
enum Dead {
    End,
    Error,
    Panic,
}

struct Dying(Dead, usize);

impl Constraint for Dead {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Dying(*self, 0))
    }
}

impl ConstraintState for Dying {
    fn push(&mut self, _: u32) -> Result<bool, String> {
        let allowed = self.1 < 5 || !matches!(self.0, Dead::End);
        self.1 += usize::from(allowed);
        Ok(allowed)
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        self.1 -= tokens;
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenSet, String> {
        match self.0 {
            _ if self.1 < 5 => Ok(TokenSet::all()),
            Dead::End => Ok(TokenSet::of(250, [])),
            Dead::Error => Err("too complex".into()),
            Dead::Panic => panic!("a bug"),
        }
    }

    fn forced(&mut self, _: usize) -> Result<Vec<u32>, String> {
        Ok(vec![])
    }
}

#[test]
fn constraint_that_cannot_go_on_fails_its_request_alone() {
    let script = Script { answers: vec![], acceptance_rate: 0.0, vocab_size: 250, seed: 2 };
    let engine = scripted("qwen3-a", script);
    let asked = request(vec![5, 6, 7], 20);
    let message = |message: &str| RequestError::Constraint { generated: 5, message: message.into() };
    let ends = [
        (Dead::End, RequestError::NothingAllowed { generated: 5 }),
        (Dead::Error, message("too complex")),
        (Dead::Panic, message("a bug")),
    ];
    for (dead, expected) in ends {
        for speculation in [Speculate::Off, fixed("scripted", 3)] {
            let constraint = Some(Arc::new(dead) as Arc<dyn Constraint>);
            let stuck = Request { constraint, speculation: Some(speculation.clone()), ..asked.clone() };
            let beside = submit(&engine, asked.clone());
            let Running { handle: _handle, events, .. } = submit(&engine, stuck);
            let events: Vec<Event> = events.into_iter().collect();
            let tokens = events.iter().filter(|event| matches!(event, Event::Token { .. })).count();
            assert_eq!(tokens, 5, "{dead:?}, {speculation:?}: {events:?}");
            let last = events.last().expect("an end");
            assert!(matches!(last, Event::Failed(error) if *error == expected), "{dead:?}: {last:?}");
            assert_eq!(answer(beside).tokens.len(), 20);
        }
    }
}

#[test]
fn unknown_drafter_is_rejected() {
    let engine = load("qwen3-a", Speculate::Auto);
    let check = |speculation: Speculate, expected: &str| {
        let asked = Request { speculation: Some(speculation), ..request(vec![5], 2) };
        let error = engine.submit(asked, |_| {}).err().expect("rejected").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(fixed("mpt", 3), "no drafter `mpt` for this model; there are ngram");
    check(fixed("forced", 3), "no drafter `forced`");
    check(fixed("ngram", 900), "900 tokens is too long");
    let folder = checkpoint::folder("qwen3-a");
    let started = start(Checkpoint::Folder(folder.path().into()), options(fixed("mpt", 3)), |_| {});
    assert!(started.err().expect("rejected").to_string().contains("no drafter `mpt:3`"));
}

/// Heads of each kind: dense, with experts, on latents.
#[test]
fn answers_with_mtp_heads_equal_plain_decoding() {
    let folder = |golden: &str| checkpoint::folder(golden);
    for golden in ["qwen3_5-a", "qwen3_next-a", "qwen3_5_moe-b", "glm4_moe-a", "deepseek_v3-a"] {
        let folder = folder(golden);
        let checkpoint = Checkpoint::Folder(folder.path().into());
        let engine = start(checkpoint, options(Speculate::Auto), |_| {}).expect("loads");
        assert_eq!(engine.info().drafters[..2], ["ngram", "mtp"], "{golden}");
        let mut random = Random(golden.len() as u64);
        let requests: Vec<Request> = (0..10).map(|_| any_request(&mut random, &[])).collect();
        let expected = ask(&engine, &requests, &Speculate::Off, false);
        let mut drafted = 0;
        for (speculation, together) in [
            (fixed("mtp", 1), false),
            (fixed("mtp", 3), true),
            (fixed("mtp", 8), true),
            (Speculate::Auto, true),
        ] {
            let got = ask(&engine, &requests, &speculation, together);
            for ((got, expected), asked) in got.iter().zip(&expected).zip(&requests) {
                assert_eq!(content(got), content(expected), "{golden}, {speculation}: {asked:?}");
                let own = got.usage.speculation.iter().filter(|by| by.drafter == "mtp");
                drafted += own.map(|by| by.drafted).sum::<usize>();
            }
        }
        assert!(drafted > 100, "{golden}: {drafted} tokens were drafted");
    }
}

/// Recorded questions, as rendered by merlin's template.
#[test]
fn mtp_head_of_merlin_saves_steps() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/merlin");
    let engine = start(Checkpoint::Folder(folder.into()), options(Speculate::Auto), |_| {}).expect("loads");
    let recorded: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../merlin.json")).expect("prompts");
    let ids = |prompt: &serde_json::Value| -> Vec<u32> {
        serde_json::from_value(prompt["ids"].clone()).expect("ids")
    };
    let requests: Vec<Request> = recorded.iter().map(|prompt| request(ids(prompt), 64)).collect();
    let expected = ask(&engine, &requests, &Speculate::Off, false);
    let got = ask(&engine, &requests, &fixed("mtp", 2), true);
    let (mut drafted, mut accepted) = (0, 0);
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(content(got), content(expected));
        drafted += got.usage.speculation.iter().map(|by| by.drafted).sum::<usize>();
        accepted += got.usage.speculation.iter().map(|by| by.accepted).sum::<usize>();
    }
    println!("{accepted} of {drafted}");
    assert!(accepted * 2 > drafted, "{accepted} of {drafted}");
}
