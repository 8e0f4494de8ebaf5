//! Sequences whose blocks of tokens are cut by a constraint, as thinking is: queued ahead, side by
//! side, preempted, restarted, resumed or drafted, each answers as it does alone.

use super::*;

/// One model per kind of cache: keys and values, windows, recurrences.
const MODELS: [&str; 3] = ["qwen3-a", "gemma3_text-a", "qwen3_5-hub"];
/// The tokens that close a block.
const CLOSING: [u32; 2] = [41, 42];

fn options() -> Options {
    Options {
        speculate: Speculate::Off,
        prefix_cache_bytes: 0,
        queue_ahead: Some(true),
        ..Options::default()
    }
}

fn limited(length: usize, max_tokens: usize) -> Request {
    let request = plain(length, max_tokens, Priority::Normal);
    let sampling = Sampling { temperature: 1.0, seed: length as u64, ..request.sampling };
    Request { constraint: constraints::limited(), sampling, ..request }
}

/// The tokens of requests that run together.
fn run(rig: &mut Rig, requests: &[Request]) -> Vec<Vec<u32>> {
    let running: Vec<Running> = requests.iter().map(|request| rig.submit(request.clone())).collect();
    rig.tick();
    rig.finish();
    running.iter().map(tokens).collect()
}

/// The tokens of each request alone, without a cache or drafts; every step is read before the next
/// is built.
fn alone(golden: &str, requests: &[Request]) -> Vec<Vec<u32>> {
    let options = Options { queue_ahead: Some(false), ..options() };
    let mut rig = Rig::new(golden, options, Memory::default(), vec![]);
    let answers: Vec<Vec<u32>> =
        requests.iter().flat_map(|request| run(&mut rig, std::slice::from_ref(request))).collect();
    assert_eq!(rig.engine_loop.options.metrics.queued_steps.get(), 0);
    let is_cut = |answer: &Vec<u32>| answer.windows(2).any(|pair| pair == CLOSING);
    assert!(answers.iter().all(is_cut), "{golden}: {answers:?}");
    answers
}

#[test]
fn steps_are_queued_ahead_except_where_a_block_may_be_cut() {
    for golden in MODELS {
        let request = [limited(20, 80)];
        let mut rig = Rig::new(golden, options(), Memory::default(), vec![]);
        assert_eq!(run(&mut rig, &request), alone(golden, &request), "{golden}");
        let queued = rig.engine_loop.options.metrics.queued_steps.get();
        assert!(queued >= 60, "{golden}: {queued} of 80 steps were queued ahead");
        // One that needs every token is waited for. The prompt's second part is queued.
        let winding = Request { constraint: constraints::winding(), ..limited(20, 80) };
        run(&mut rig, &[winding]);
        assert_eq!(rig.engine_loop.options.metrics.queued_steps.get(), queued + 1, "{golden}");
    }
}

#[test]
fn rows_cut_in_the_same_step_answer_as_alone() {
    for golden in MODELS {
        let uncut = |i: usize| {
            // Multiples of five cut a block early.
            let bias = (0..250).filter(|id| id % 5 == 0).map(|id| (id, -1e4));
            let request = limited(20, 40);
            let sampling = Sampling { seed: i as u64, ..request.sampling.clone() };
            let logit_bias = request.sampling.logit_bias.into_iter().chain(bias).collect();
            Request { sampling: Sampling { logit_bias, ..sampling }, ..request }
        };
        let requests: Vec<Request> = (0..4).map(uncut).chain([limited(31, 40)]).collect();
        let mut rig = Rig::new(golden, options(), Memory::default(), vec![]);
        let answers = run(&mut rig, &requests);
        assert!(answers[..4].iter().all(|answer| answer[6..8] == CLOSING), "{golden}: {answers:?}");
        assert_eq!(answers, alone(golden, &requests), "{golden}");
    }
}

#[test]
fn preempted_rows_are_closed_where_they_are_alone() {
    let requests = [30, 40, 50].map(|length| limited(length, 1000 - length));
    let mut rig = Rig::new("qwen3_5-hub", options(), room_for(2400), vec![]);
    let answers = run(&mut rig, &requests);
    assert!(rig.engine_loop.options.metrics.preemptions.get() > 0, "some were preempted");
    assert!(rig.engine_loop.options.metrics.queued_steps.get() > 300);
    assert_eq!(answers, alone("qwen3_5-hub", &requests));
}

#[test]
fn rows_that_restart_after_a_failure_are_closed_where_they_are_alone() {
    let requests = [20, 25, 31].map(|length| limited(length, 30));
    for golden in MODELS {
        let expected = alone(golden, &requests);
        for message in [PANIC, "out of memory on purpose"] {
            for panics_at in [1, 3, 6, 8, 9, 10, 11, 14, 20] {
                let memory = Memory::default();
                let mut rig = Rig::faulty(golden, options(), memory, vec![], Some(panics_at), message);
                let answers = run(&mut rig, &requests);
                assert_eq!(answers, expected, "{golden}, step {panics_at}: {message}");
                assert_eq!(rig.engine_loop.options.metrics.failed_steps.get(), 1);
            }
        }
    }
}

#[test]
fn next_turn_reuses_the_state_of_the_forced_tokens() {
    for golden in MODELS {
        let first = limited(20, 25);
        let options = Options { prefix_cache_bytes: 1 << 30, ..options() };
        let mut rig = Rig::new(golden, options, Memory::default(), vec![]);
        let answer = run(&mut rig, std::slice::from_ref(&first)).concat();
        let prompt = [&first.prompt[..], &answer, &[30, 31, 32]].concat();
        let second = Request { prompt, ..limited(1, 30) };
        let expected = alone(golden, &[first, second.clone()]);
        assert_eq!(answer, expected[0], "{golden}");
        let running = rig.submit(second);
        rig.tick();
        rig.finish();
        let (mut tokens, mut cached) = (vec![], 0);
        for event in running.1.try_iter() {
            match event {
                Event::Token { id, .. } => tokens.push(id),
                Event::Finished { usage, .. } => cached = usage.cached_tokens,
                _ => {}
            }
        }
        assert_eq!(tokens, expected[1], "{golden}");
        assert!(cached >= 20 + 24, "{golden}: {cached} tokens of 45 were reused");
    }
}

#[test]
fn drafts_across_a_cut_change_nothing() {
    for golden in MODELS {
        let requests = [20, 25, 31].map(|length| limited(length, 60));
        let expected = alone(golden, &requests);
        // One drafter knows the answers, the other what would come without the limit.
        let unlimited = requests.clone().map(|request| Request { constraint: None, ..request });
        let mut rig = Rig::new(golden, options(), Memory::default(), vec![]);
        let free = run(&mut rig, &unlimited);
        for (answers, acceptance_rate, least) in [(&expected, 1.0, 20), (&expected, 0.6, 20), (&free, 1.0, 1)]
        {
            let prompts = requests.iter().map(|request| request.prompt.clone());
            let answers = prompts.zip(answers.iter().cloned()).collect();
            let script = Script { answers, acceptance_rate, vocab_size: 250, seed: 1 };
            let speculate = Speculate::Fixed { drafter: "scripted".into(), depth: Some(5) };
            let options = Options { speculate, ..options() };
            let drafters: Vec<Box<dyn Drafter>> = vec![Box::new(ScriptedDrafter(script))];
            let mut rig = Rig::new(golden, options, Memory::default(), drafters);
            assert_eq!(run(&mut rig, &requests), expected, "{golden}");
            let drafts = rig.engine_loop.options.metrics.drafts();
            let drafted = |name: &str| -> u64 {
                drafts.iter().filter(|of| of.drafter == name).map(|of| of.drafted.get()).sum()
            };
            assert!(drafted("scripted") >= least && drafted("forced") > 5, "{golden}");
        }
    }
}
